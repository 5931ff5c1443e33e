import re

import pytest
from tests.support.command_tree import valued_parameters

from lifesign.cli.options.metavars import METAVARS, unknown_words

PARAMETERS = [*valued_parameters()]


def test_every_value_has_the_word_of_its_kind() -> None:
    assert len(PARAMETERS) > 200
    assert [name for name, parameter in PARAMETERS if not parameter.metavar] == []
    unknown = {name: unknown_words(parameter.metavar) for name, parameter in PARAMETERS}
    assert {name: words for name, words in unknown.items() if words} == {}


def test_every_word_is_used_by_a_command() -> None:
    used = {word for _, each in PARAMETERS for word in re.split(r"\W+", each.metavar)}
    assert METAVARS.keys() - used == set()


@pytest.mark.parametrize("option", ["--pool", "--limit", "--workers", "--capability", "--agent", "--host"])
def test_an_option_of_several_commands_has_one_word(option: str) -> None:
    assert len({each.metavar for name, each in PARAMETERS if name.endswith(f" {option}")}) == 1


def test_a_role_is_that_of_a_key() -> None:
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
def test_words_are_known_alone_and_combined(metavar: str, unknown: list[str]) -> None:
    assert unknown_words(metavar) == unknown
