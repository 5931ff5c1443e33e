"""Messages of examples that were started without what they need."""

import os
from pathlib import Path

import pytest
from tests.support.preloaded import PYTHON, run

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("LIFESIGN_")}


@pytest.mark.parametrize(
    ("program", "missing"),
    [
        ("declared_agent.py", "key_file"),
        ("task_worker.py", "key_file"),
        ("registered_agent.py", "agent_id, key_file"),
        ("registered_agent.py a none.key", "LIFESIGN_KEY, LIFESIGN_REGISTRY"),
        ("page_agent.py", "lifesign run"),
    ],
)
def test_example_without_arguments_names_the_missing_ones(program: str, missing: str) -> None:
    name, *arguments = program.split()
    ended = run(EXAMPLES / name, *arguments, program=PYTHON, env=ENVIRONMENT)
    assert ended.returncode == 2, ended.stderr
    usage, lines = ended.stderr.splitlines()
    assert usage.startswith(f"usage: {name}")
    assert missing in lines


@pytest.mark.parametrize("program", ["declared_agent.py", "task_worker.py"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "key: expected one in {key_file}, or for the first start an enroll key in $LIFESIGN_KEY"),
        ({"LIFESIGN_KEY": "ahk_x"}, "registry: expected a URL, as registry or in $LIFESIGN_REGISTRY"),
    ],
)
def test_example_agent_without_key_or_registry_fails_with_one_line(
    program: str, given: dict[str, str], message: str, tmp_path: Path
) -> None:
    key_file = tmp_path / "own.key"
    ended = run(EXAMPLES / program, key_file, program=PYTHON, env=ENVIRONMENT | given)
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        2,
        "",
        f"{program}: {message.format(key_file=key_file)}\n",
    )


def test_every_example_that_takes_arguments_has_a_usage_line() -> None:
    bare = [file.name for file in EXAMPLES.rglob("*.py") if "sys.argv" in file.read_text()]
    assert bare == []
