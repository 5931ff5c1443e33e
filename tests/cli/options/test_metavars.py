import re

import pytest
from tests.support.command_tree import valued_parameters

from lifesign.cli.options.metavars import METAVARS, unknown_words

PARAMETERS = [*valued_parameters()]


def test_each_option_has_a_known_metavar() -> None:
    assert len(PARAMETERS) > 200
    assert [name for name, parameter in PARAMETERS if not parameter.metavar] == [], "without metavar"
    unknown = {name: unknown_words(parameter.metavar) for name, parameter in PARAMETERS}
    assert {name: words for name, words in unknown.items() if words} == {}, (
        "use or add a word of METAVARS in cli/options/metavars.py"
    )


def test_each_metavar_is_used_by_a_command() -> None:
    used = {word for _, each in PARAMETERS for word in re.split(r"\W+", each.metavar)}
    assert METAVARS.keys() - used == set()


@pytest.mark.parametrize("option", ["--pool", "--limit", "--workers", "--capability", "--agent", "--host"])
def test_option_of_several_commands_has_one_metavar(option: str) -> None:
    assert len({each.metavar for name, each in PARAMETERS if name.endswith(f" {option}")}) == 1


def test_role_option_exists_only_for_keys_commands() -> None:
    assert {name for name, _ in PARAMETERS if name.endswith(" --role")} == {
        "keys confirm --role",
        "keys create --role",
        "keys list --role",
    }


@pytest.mark.parametrize(
    ("metavar", "unknown"),
    [
        ("AGENT_ID|URL", []),
        ("[AGENT_ID=]FILE|DIRECTORY", []),
        ("NETWORK,...", []),
        ("FILE|URL|-", []),
        ("accept|reject", []),
        ("a2a|mcp", []),
        ("N", ["N"]),
        ("path", ["path"]),
        ("FILE|PATH", ["PATH"]),
    ],
)
def test_combined_metavars_are_split_into_known_words(metavar: str, unknown: list[str]) -> None:
    assert unknown_words(metavar) == unknown
