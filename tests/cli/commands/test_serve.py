import ast
import inspect
import typing
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.models import OptionInfo

from lifesign.cli import main
from lifesign.cli.commands.serve import PREFIX, serve
from lifesign.registry import run_server
from lifesign.registry.run_server import Listening, Prepared
from lifesign.registry.settings import RegistrySettings

BESIDES = {"return", "context", "_config", "show_config"}
"""Parameters about the sources and display of settings; they are no settings themselves."""
OPTIONS = {
    name: next(part for part in typing.get_args(hint) if isinstance(part, OptionInfo))
    for name, hint in typing.get_type_hints(serve, include_extras=True).items()
    if name not in BESIDES
}


def test_every_setting_has_its_option_and_there_are_no_others() -> None:
    settings = set(RegistrySettings.model_fields) | set(inspect.signature(Listening).parameters)
    assert settings - set(OPTIONS) == set(), "add these parameters to serve() in cli/commands/serve.py"
    assert set(OPTIONS) - settings == set(), "add these members to RegistrySettings or Listening"


def test_serve_uses_every_option() -> None:
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(serve))) if isinstance(node, ast.Call)]
    used = {
        argument.arg
        for call in calls
        for argument in call.keywords
        for part in ast.walk(argument.value)
        if isinstance(part, ast.Name) and part.id == argument.arg
    }
    assert set(OPTIONS) - used == set(), "pass these parameters to _settings() or Listening() in serve()"


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_a_variable_of_the_server(name: str) -> None:
    variable = str(OPTIONS[name].envvar)
    assert variable.startswith(PREFIX)
    # Within Annotated, typer takes the first name of an option for its default.
    given = (OPTIONS[name].default, *(OPTIONS[name].param_decls or ()))
    options = {str(each).removeprefix("--").replace("-", "_") for each in given}
    assert variable.removeprefix(PREFIX).lower() in {name, name.removesuffix("s")} | options


def test_serve_option_defaults_are_those_of_the_settings() -> None:
    parameters = inspect.signature(serve).parameters
    own = RegistrySettings()
    for name in RegistrySettings.model_fields.keys() & parameters:
        assert parameters[name].default in {None, "", getattr(own, name)}, name


@pytest.mark.parametrize(("given", "variable", "needed"), [
    ([], None, ""),
    ([], "sqlite:///its own.db", ""),
    (["--database", "sqlite:///its own.db"], None, " --database 'sqlite:///its own.db'"),
    (["--database", "postgresql://ah:secret-word@db/ah"], None, " --database postgresql://ah:...@db/ah"),
    (["--config", "ours.toml"], None, " --config ours.toml"),
])  # fmt: skip
def test_missing_admin_key_is_reported_with_the_command_that_creates_one(  # noqa: PLR0917 - most are fixtures
    given: list[str],
    variable: str | None,
    needed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def served(_settings: object, _listening: object, **expected: Callable[[Prepared], None]) -> int:
        expected["say_prepared"](Prepared(database="the database", admin_key=None, needs_admin_key=True))
        return 0

    monkeypatch.chdir(tmp_path)
    Path("ours.toml").write_text('[server]\ndatabase = "sqlite:///ours.db"\n')
    if variable is not None:
        monkeypatch.setenv("LIFESIGN_SERVER_DATABASE", variable)
    monkeypatch.setattr(run_server, "run_server", served)
    assert main(["serve", *given]) == 0
    hint = f": lifesign keys create --role admin --name NAME{needed}"
    assert capsys.readouterr().out.splitlines()[-1].endswith(hint)


@pytest.mark.parametrize(
    "options",
    [
        ["--workers", "0"],
        ["--port", "70000"],
        ["--nonsense"],
        ["--database", "mysql://root@h/d"],
        ["--database", "sqlite://"],
        ["--dialect", "klingon"],
        ["--trusted-proxies", "somewhere"],
        ["--trusted-proxies", "*"],
        ["--tls-certificate", "cert.pem"],
        ["--tls-certificate", "absent.pem", "--tls-key", "absent.pem"],
        ["--public-url", "registry.example"],
        ["--sweep-interval", "0s"],
    ],
)
def test_wrong_option_is_one_line(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def checked(settings: RegistrySettings, listening: Listening, **_: object) -> int:
        run_server.check(settings, listening)
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_server, "run_server", checked)
    assert main(["serve", "--port", "0", *options]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("lifesign: ")
    assert shown.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
