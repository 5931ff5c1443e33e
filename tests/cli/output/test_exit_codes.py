import functools
import inspect
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.command_tree import commands, options_of, valued_parameters

from lifesign.adapter.process import process_watcher
from lifesign.cli import main
from lifesign.cli.output.exit_codes import COMMANDS, MEANINGS, ExitCode, exit_code_of
from lifesign.client import RegistryClient
from lifesign.client.environment_variables import KEY_VARIABLE
from lifesign.client.registry_errors import InvalidAnswer, NotFound, Unreachable
from lifesign.errors import InvalidValue
from lifesign.storage.errors import DatabaseInUse, InvalidBackup, StoreUnavailable

ALL = dict(commands())
CLOSED = "http://127.0.0.1:9"
TASK, KEY = "task_01jd8w3q5t6v7x9zabcdefghjk", "key_01jd8w3q5t6v7x9zabcdefghjk"
LOOPBACK = ("--allow-network", "127.0.0.0/8")
ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "check": (CLOSED,),
    "validate": (CLOSED,),
    "probe": (CLOSED, *LOOPBACK),
    "crawl": ("probe.yml", "--once"),
    "census": ("list.txt", *LOOPBACK),
    "recheck": ("a",),
    "directories confirm": ("a",),
    "directories remove": ("a",),
    "agents show": ("a",),
    "agents drain": ("a",),
    "agents link": ("a", "https://agent.example/"),
    "agents deregister": ("a",),
    "agents command": ("a", "drain"),
    "agents history": ("a",),
    "agents versions": ("a",),
    "agents compare": ("a",),
    "agents maintenance": ("a", "--end"),
    "agents erase": ("a", "--yes"),
    "tasks show": (TASK,),
    "tasks create": ("title",),
    "tasks cancel": (TASK,),
    "tasks review": (TASK, "accept"),
    "tasks resolve": (TASK, "done"),
    "tasks top-up": (TASK, "--tokens", "1"),
    "monitor confirm": ("--agent", "a"),
    "watch-activity opencode": (CLOSED, "--map", "ses_1f83=a"),
    "keys create": ("--role", "reader", "--name", "r"),
    "keys rotate": (KEY,),
    "keys limit": (KEY, "--max-workers", "1"),
    "keys confirm": (KEY,),
    "keys revoke": (KEY,),
    "backup": ("backup.gz",),
    "restore": ("backup.gz",),
    "run": ("--once", "--", "true"),
    "completion": ("bash",),
    "serve": ("--port", "0"),
}
"""Arguments of a correct call of each command; options of the tests come before them."""

VERDICT_OF_DOCTOR: Final = {"doctor": ExitCode.FAILED}
WITHOUT_FIRST_REQUEST: Final = {"mcp", "watch-activity opencode"}
"""They go on without the registry, and report when it answers."""
NEEDED: Final = {
    "crawl --key-file": ("--registry", CLOSED),
    "census --key-file": ("--registry", CLOSED),
    "mcp --key-file": ("--registry", CLOSED),
    "mcp --token-file": ("--transport", "http"),
}
"""Arguments that make a command read the file of an option."""
WRITTEN: Final = {"--write-key"}
"""Options whose file a command makes."""
CREATES_DATABASE: Final = {"crawl", "census", "serve", "migrate", "doctor", "keys create", "restore"}


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A backup of an empty database."""
    directory = tmp_path_factory.mktemp("backup")
    database = ("--database", f"sqlite:///{directory}/first.db")
    assert main(["migrate", *database]) == 0
    assert main(["backup", str(directory / "backup.gz"), *database]) == 0
    return (directory / "backup.gz").read_bytes()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backup: bytes) -> Path:
    """A working directory with a list, a definition and a backup, and a key in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(KEY_VARIABLE, "ahk_" + "a" * 43)
    monkeypatch.setattr(process_watcher, "hide_memory", lambda: None)
    monkeypatch.setenv("LIFESIGN_SERVER_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "list.txt").write_text(f"{CLOSED}\n")
    (tmp_path / "probe.yml").write_text(
        f"name: here\ntargets: [{CLOSED}]\nnetworks: {{allow: [127.0.0.0/8]}}\n"
    )
    (tmp_path / "backup.gz").write_bytes(backup)
    return tmp_path


def called(name: str, *options: str) -> int:
    """Run a command with these options; its code must be one that its help explains."""
    code = main([*name.split(), *options, *ARGUMENTS.get(name, ())])
    assert code in COMMANDS[name], name
    return code


def taking(option: str) -> list[str]:
    return [name for name, command in ALL.items() if option in options_of(command)]


def test_exit_code_table_covers_each_command_and_code() -> None:
    assert COMMANDS.keys() == ALL.keys()
    assert MEANINGS.keys() == set(ExitCode)
    used = {code for row in COMMANDS.values() for code in row}
    assert used == set(ExitCode) - {ExitCode.READER_LEFT}


@pytest.mark.parametrize(("name", "command"), ALL.items(), ids=ALL.keys())
def test_help_shows_examples_and_the_codes_of_the_table(name: str, command: Any) -> None:
    assert "Examples:" in command.help
    assert "Exit code" not in command.help
    shown = inspect.cleandoc(command.epilog)
    assert "Exit codes" in shown
    assert ("monitoring plugins" in shown) == (name == "check")
    for code, text in COMMANDS[name].items():
        assert f"  {int(code)} {text}" in " ".join(shown.split()).replace(f" {int(code)} ", f"  {int(code)} ")


@pytest.mark.parametrize("name", ALL)
def test_invalid_option_is_wrong_usage(name: str) -> None:
    assert called(name, "--nonsense") == ExitCode.USAGE


@pytest.mark.parametrize("name", sorted({*taking("--registry")} - WITHOUT_FIRST_REQUEST))
def test_unreachable_registry_has_the_exit_code_no_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "events tail":
        impatient = functools.partial(RegistryClient, timeout_seconds=0.3)
        monkeypatch.setattr("lifesign.client.registry.RegistryClient", impatient)
    expected = VERDICT_OF_DOCTOR.get(name, ExitCode.NO_ANSWER)
    assert called(name, "--registry", CLOSED) == expected


@pytest.mark.parametrize("name", taking("--database"))
@pytest.mark.parametrize("url", ["postgresql://ah@127.0.0.1:9/ah", "sqlite:///damaged.db"])
def test_unreachable_or_unreadable_database_has_the_exit_code_no_answer(
    name: str, url: str, place: Path
) -> None:
    (place / "damaged.db").write_bytes(b"no database" * 1_000)
    expected = VERDICT_OF_DOCTOR.get(name, ExitCode.NO_ANSWER)
    assert called(name, "--database", url) == expected


@pytest.mark.parametrize("name", sorted({*taking("--database")} - CREATES_DATABASE))
def test_a_database_file_that_is_missing_is_wrong_usage(name: str) -> None:
    assert called(name, "--database", "sqlite:///absent.db") == ExitCode.USAGE


FILE_OPTIONS = [
    name
    for name, each in valued_parameters()
    if "FILE" in each.metavar and each.opts[0].startswith("-") and each.opts[0] not in WRITTEN
]


@pytest.mark.parametrize("name", FILE_OPTIONS)
def test_a_file_of_an_option_that_is_missing_is_wrong_usage(name: str) -> None:
    command, _, option = name.rpartition(" ")
    expected = ExitCode.FAILED if command == "doctor" and option != "--config" else ExitCode.USAGE
    assert called(command, *NEEDED.get(name, ()), option, "absent") == expected


@pytest.mark.parametrize(
    "arguments",
    [["validate", "absent"], ["crawl", "absent.yml"], ["census", "absent"], ["restore", "absent"]],
)
def test_a_file_that_is_missing_is_wrong_usage(arguments: list[str]) -> None:
    assert main(arguments) == ExitCode.USAGE


@pytest.mark.parametrize(("name", "code"), [("check", 3), ("validate", 2), ("probe", 1)])
def test_unreachable_agent_has_the_exit_code_of_its_command(name: str, code: int) -> None:
    assert called(name) == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidValue("--port", 0, "1 or more"), ExitCode.USAGE),
        (InvalidBackup("file", "no backup"), ExitCode.USAGE),
        (StoreUnavailable("away"), ExitCode.NO_ANSWER),
        (Unreachable("no connection", was_sent=False), ExitCode.NO_ANSWER),
        (InvalidAnswer("no JSON"), ExitCode.NO_ANSWER),
        (NotFound("no agent"), ExitCode.FAILED),
        (DatabaseInUse("file"), ExitCode.FAILED),
    ],
)
def test_an_error_has_one_exit_code(error: Any, code: ExitCode) -> None:
    assert exit_code_of(error) is code
