import asyncio
import errno
import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from tests.support import preloaded
from tests.support.agent_check import document
from tests.support.command_tree import commands
from tests.support.hostile_server import HEALTH_PATH, as_json, serving
from tests.support.servers import PATIENCE_SECONDS

from lifesign.cli import EXTRAS, main
from lifesign.domain.common.project import install_command

HELPS = (
    ["--help"], ["-h"], ["check", "--help"], ["validate", "--help"],
    *(["agents", command, "--help"]
      for command in ("list", "show", "register", "drain", "deregister", "command", "maintenance", "erase")),
    *(["events", command, "-h"] for command in ("list", "tail", "verify")),
    *(["keys", command, "-h"] for command in ("create", "list", "rotate", "revoke")),
    *([command, "--help"] for command in ("serve", "migrate", "backup", "restore")),
)  # fmt: skip
WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise ModuleNotFoundError("No module named " + name, name=name)

sys.meta_path.insert(0, Absent())
from lifesign.cli import main
sys.exit(main({arguments!r}))
"""
LOADED = """
import sys
from lifesign.cli import main
main({arguments!r})
print(*sys.modules, file=sys.stderr)
"""


def run_python(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        input="",
    )


@pytest.mark.parametrize("arguments", HELPS)
def test_help_exits_with_0(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert "Usage: lifesign" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", HELPS[2:])
def test_help_of_a_command_shows_examples_and_exit_codes(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(arguments)
    shown = capsys.readouterr().out
    assert "Examples:\n" in shown
    assert "Exit codes" in shown
    assert "\b" not in shown


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("lifesign ")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["check"],
        ["check", "--nonsense"],
        ["check", "http://a", "http://b"],
        ["check", "ftp://agent.example"],
        ["check", "http://me:hunter2@agent.example"],
        ["check", "http://127.0.0.1:1", "--timeout", "soon"],
        ["check", "http://127.0.0.1:1", "--timeout", "0"],
        ["check", "http://127.0.0.1:1", "--token-file", "/nonexistent"],
        ["validate"],
        ["validate", "http://"],
    ],
)
def test_wrong_usage_exits_with_3_and_an_explanation(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err
    assert "hunter2" not in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "(see lifesign --help)"),
        (["keys", "nonsense"], "(see lifesign keys --help)"),
        (["keys", "create", "--nonsense"], "(see lifesign keys create --help)"),
        (["check"], "(see lifesign check --help)"),
        (["serve", "--port"], "(see lifesign serve --help)"),
        (["keys", "create", "--name", "x", "--role"], "(see lifesign keys create --help)"),
        (["serve", "--open-metrics=3"], "(see lifesign serve --help)"),
        (["--version=3"], "(see lifesign --help)"),
        (["run", "--once", "--pool"], "(see lifesign run --help)"),
        (["serve", "--workers", "0"], "--workers: 1 (see lifesign serve --help)"),
        (["serve", "--workers", "129"], "--workers: 128 (see"),
        (["serve", "--workers", "two"], "--workers: whole (see"),
        (["crawl", "x.yml", "--workers", "0"], "--workers: 1 (see"),
        (["serve", "--requests-per-second", "nan"], "--requests-per-second: nan"),
    ],
)
def test_wrong_usage_names_the_option_and_the_help_command(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 3
    err = capsys.readouterr().err
    assert [word for word in message.split() if word not in err] == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["serve", "--sweep-interval", "500ms", "--show-config"], {"s,", "m,", "0.5s"}),
        (["check", "http://127.0.0.1:1", "--timeout", "5min"], {"s,", "m,"}),
        (["keys", "create", "--name", "x"], {"--role:", "reader,"}),
        (["keys", "create", "--name", "x", "--role", "king"], {"enroll", "reader", "admin"}),
        (["keys", "list", "--role", "king"], {"enroll", "reader", "admin"}),
        (["mcp", "--key-file", "{key}"], {"--registry", "--key-file,"}),
        (["agents", "list"], {"keys", "create", "--role"}),
        (["agents", "list", "--key-file", "{key}", "--registry", "http://127.0.0.1:1"], {"--registry"}),
        (["keys", "list", "--database", "postgresql://a@127.0.0.1:1/b"], {"PostgreSQL"}),
        (["serve", "--config", "{config}"], {"s,", "0.5s"}),
        (["crawl", "--check", "{definition}"], {"interval_seconds", "seconds:"}),
    ],
)
def test_wrong_units_missing_keys_and_refused_connections_have_a_hint(
    arguments: list[str],
    named: set[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LIFESIGN_KEY", raising=False)
    monkeypatch.delenv("LIFESIGN_REGISTRY", raising=False)
    files = {
        "key": "ahk_" + "a" * 43,
        "config": '[server]\nsweep_interval = "5min"\n',
        "definition": (
            "name: a\ncontact: mailto:a@b.example\ntargets: [https://a.example]\n"
            "cadence: {interval_seconds: 5m}\n"
        ),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    assert main([each.format(**{name: tmp_path / name for name in files}) for each in arguments]) in {2, 3}
    problem, hint = capsys.readouterr().err.splitlines()
    assert problem.startswith("lifesign: ")
    assert hint.startswith("hint: ")
    assert named <= set(hint.split())


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("typer", ["--help"], "client"),
        ("aiohttp", ["check", "http://127.0.0.1:1"], "client"),
        ("aiohttp", ["validate", "http://127.0.0.1:1"], "client"),
        ("aiohttp", ["agents", "list"], "client"),
        ("aiohttp", ["events", "tail"], "client"),
        ("sqlalchemy", ["events", "verify", "--database", "sqlite://"], "registry"),
        ("mcp", ["mcp"], "mcp"),
    ],
)
def test_missing_extra_is_one_line_with_the_install_command(
    module: str, arguments: list[str], extra: str
) -> None:
    ended = run_python(WITHOUT.format(module=module, arguments=arguments))
    assert ended.returncode == 3
    problem, hint = ended.stderr.splitlines()
    assert problem == f"lifesign: {module} is not installed"
    assert install_command(extra) in hint


@pytest.mark.parametrize(
    "arguments", [["--help"], ["check", "--help"], ["validate", "-"], ["agents", "list", "-h"]]
)
def test_http_client_is_imported_only_when_needed(arguments: list[str]) -> None:
    loaded = run_python(LOADED.format(arguments=arguments)).stderr.split()
    assert "typer" in loaded
    assert not {"aiohttp", "rich", "yarl"} & set(loaded)


def test_help_imports_neither_pydantic_nor_asyncio() -> None:
    loaded = run_python(LOADED.format(arguments=["--help"])).stderr.split()
    assert not {"asyncio", "pydantic"} & set(loaded)


@pytest.mark.parametrize(
    ("area", "others"),
    [
        ("agents", {"lifesign.domain.models.tasks", "lifesign.domain.models.leases"}),
        ("tasks", {"lifesign.client.registry_agents", "lifesign.client.registry_events"}),
    ],
)
def test_request_imports_only_its_own_models(area: str, others: set[str]) -> None:
    program = f"""
import sys
from lifesign.client import RegistryClient
RegistryClient("http://127.0.0.1:9").{area}
print(*sys.modules)
"""
    loaded = run_python(program).stdout.split()
    assert f"lifesign.client.registry_{area}" in loaded
    assert others & set(loaded) == set()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 141),
        (["keys", "--help"], 141),
        # Each a verdict.
        (["validate", "--json", "-"], 1),
        (["validate", "-"], 1),
        (["check", "{agent}"], 0),
        (["check", "{agent}", "--json"], 0),
        (["probe", "http://127.0.0.1:1", "--allow-network", "127.0.0.0/8"], 1),
        (["doctor", "--definition", "absent.yml", "--json"], 1),
    ],
)
async def test_closed_output_pipe_does_not_change_the_exit_code(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    # More faults than a buffer of output holds.
    broken = json.dumps({"extensions": {f"name-without-prefix-{number}": 1 for number in range(100)}})
    (tmp_path / "broken.json").write_text(broken)
    reader, writer = os.pipe()
    os.close(reader)
    async with serving({HEALTH_PATH: as_json(document())}) as agent:
        given = [argument.format(agent=agent.url) for argument in arguments]
        with os.fdopen(writer, "wb") as stdout, (tmp_path / "broken.json").open() as stdin:
            ended = await asyncio.to_thread(preloaded.run, *given, stdin=stdin, stdout=stdout)
    assert (ended.returncode, ended.stderr) == (code, "")


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
@pytest.mark.parametrize("arguments", ["--help", "check http://127.0.0.1:1", "validate /dev/null --json"])
def test_unwritable_output_gives_the_exit_code_unknown(arguments: str, redirection: str) -> None:
    """A monitoring plugin on a full disk is unknown, not degraded."""
    command = f"{sys.executable} -c 'import sys; from lifesign.cli import main; sys.exit(main())' {arguments}"
    ended = subprocess.run(
        ["/bin/sh", "-c", f"{command} {redirection}"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ended.returncode == 3
    assert ended.stderr.startswith("lifesign: ")
    assert "Traceback" not in ended.stderr


def test_commands_are_built_once_for_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["--version"]) == 0
    monkeypatch.setattr("typer.main.get_command", None)
    assert main(["--version"]) == 0
    assert main(["absent"]) == 3


def test_other_os_errors_are_not_output_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refused(_arguments: object) -> int:
        return len((tmp_path / "absent").read_bytes())

    monkeypatch.setattr("lifesign.cli.application.run", refused)
    monkeypatch.setattr("lifesign.cli.discard_remaining_output", lambda: None)
    assert main(["check"]) == 3
    err = capsys.readouterr().err
    path = str(tmp_path / "absent")
    assert err.endswith(f" {path!a} ({os.strerror(errno.ENOENT)})\n")


def test_name_that_is_too_long_and_may_be_a_token_is_not_quoted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("lifesign.cli.application.run", lambda _: (tmp_path / ("tok" * 100)).stat())
    monkeypatch.setattr("lifesign.cli.discard_remaining_output", lambda: None)
    assert main(["check"]) == 3
    err = capsys.readouterr().err
    assert os.strerror(errno.ENAMETOOLONG) in err
    assert "tok" not in err


def test_errors_of_a_file_are_listed_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "probe.yml"
    file.write_text("name: Census\ntargets: [https://agent.example]\nmore: 1\n")
    assert main(["probe", "https://agent.example", "--definition", str(file)]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert [line.removeprefix(f"lifesign: {file}: ").partition(":")[0] for line in lines] == [
        "line 1",
        "line 3",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["probe", "{}"],
        ["check", "{}"],
        ["recheck", "{}"],
        ["census", "{}/list.txt"],
        ["agents", "show", "{}"],
        ["agents", "drain", "{}"],
        ["agents", "list", "--registry", "{}"],
        ["directories", "confirm", "a", "too-much", "{}"],
    ],
)
@pytest.mark.parametrize("user", ["u:s3cret", "u:p/s3cret", ":s3cret"])
def test_a_password_in_a_url_is_not_repeated(
    user: str,
    arguments: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIFESIGN_KEY", "ahk_" + "a" * 43)
    monkeypatch.setenv("LIFESIGN_REGISTRY", "http://127.0.0.1:1")
    assert main([argument.format(f"https://{user}@127.0.0.1:1") for argument in arguments]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "s3cret" not in shown.err
    assert shown.err.count("\n") == 1


def test_a_password_in_a_definition_is_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "probe.yml"
    file.write_text(
        "name: a\n"
        "targets: ['https://u:s3cret@agent.example', 'u:s3cret@agent.example']\n"
        "directories: [{url: 'https://s3cret@agent.example'}, 'https://u:s3cret@agent.example']\n"
        "results: {registry: 'https://u:s3cret@agent.example'}\n"
    )
    assert main(["crawl", str(file), "--once"]) == 3
    output = capsys.readouterr().err
    assert "/targets/1" in output
    assert "s3cret" not in output


def test_every_package_of_an_extra_has_a_hint_if_it_is_absent() -> None:
    modules: dict[str, set[str]] = {}
    for module, distributions in metadata.packages_distributions().items():
        for distribution in distributions:
            modules.setdefault(distribution.lower().replace("_", "-"), set()).add(module)
    required = [line for line in metadata.requires("lifesign") or () if "extra ==" in line]
    names = {re.split(r"[\[<>=; ]", line)[0].lower() for line in required} - {"lifesign"}
    assert names
    assert [name for name in sorted(names) if modules[name].isdisjoint(EXTRAS)] == []


NOT_ALONE = re.compile(
    r"(Of|For people|Where|Whose|And|Without|At most|Kept|Delegated|PEM|Processes|Holds)\b|\d+: |\S+$"
)
"""Beginnings of help texts that need the option's name, and texts of one word."""


def test_every_help_text_makes_sense_alone() -> None:
    texts = {
        f"{path} {parameter.name}": parameter.help or ""
        for path, command in commands()
        for parameter in command.params
        if getattr(parameter, "help", None) is not None
    }
    assert len(texts) > 200
    assert {name: text for name, text in texts.items() if NOT_ALONE.match(text)} == {}
