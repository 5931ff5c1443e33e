import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import uvicorn
from tests.support.servers import REPOSITORY
from tools.page_tables import pages, settings_table

from lifesign.cli import application, main
from lifesign.cli.options.config_file import read_config, settings_of
from lifesign.cli.options.secret_file import complain

COMMANDS: Any = typer.main.get_command(application._application)
TEXT = (REPOSITORY / "docs" / "configuration.md").read_text()


@pytest.fixture(autouse=True)
def _bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def serve_nothing(_server: uvicorn.Server, **_given: object) -> None:
        raise AssertionError("nothing was refused")

    monkeypatch.setattr(uvicorn.Server, "run", serve_nothing)
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS.commands.values():
        for parameter in command.params:
            if isinstance(parameter.envvar if hasattr(parameter, "envvar") else None, str):
                monkeypatch.delenv(parameter.envvar, raising=False)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, tuple[Any, str]]:
    """The value of each setting, and where it comes from."""
    assert main([*arguments, "--show-config"]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    sources = dict(re.findall(r"^(?:# )?(\w+) = .*# (\w+)", out, re.MULTILINE))
    (values,) = tomllib.loads(out).values()
    return {name: (values.get(name), source) for name, source in sources.items()}


def write(text: str, name: str = "lifesign.toml") -> str:
    Path(name).write_text(text)
    return name


def test_option_overrides_variable_and_variable_overrides_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(
        '[server]\nport = 1\nworkers = 2\nhost = "::1"\nsweep_interval = "7s"\nopen_metrics = true\n'
    )
    monkeypatch.setenv("LIFESIGN_SERVER_PORT", "11")
    monkeypatch.setenv("LIFESIGN_SERVER_WORKERS", "12")
    found = shown(capsys, "serve", "--config", file, "--port", "111")
    assert found["port"] == (111, "option")
    assert found["workers"] == (12, "environment")
    assert found["host"] == ("::1", "file")
    assert found["sweep_interval"] == ("7s", "file")
    assert found["open_metrics"] == (True, "file")
    assert found["database_timeout"] == ("5s", "default")
    assert found["tls_key"] == (None, "default")


def test_shown_configuration_is_a_valid_configuration_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIFESIGN_SERVER_CONFIG", write('[server]\ntrusted_proxies = ["10.0.0.0/8", "::1"]\n'))
    assert main(["serve", "--show-config"]) == 0
    again = write(capsys.readouterr().out, "again.toml")
    first = shown(capsys, "serve")
    second = shown(capsys, "serve", "--config", again)
    assert first["trusted_proxies"] == ("10.0.0.0/8,::1", "file")
    assert {name: value for name, (value, _) in first.items()} == {
        name: value for name, (value, _) in second.items()
    }


def test_crawl_settings_have_their_own_table(capsys: pytest.CaptureFixture[str]) -> None:
    file = write('[server]\nport = 1\n[prober]\nworkers = 3\nmetrics = "127.0.0.1:1"\n')
    found = shown(capsys, "crawl", "x.yml", "--config", file)
    assert found["workers"] == (3, "file")
    assert found["metrics"] == ("127.0.0.1:1", "file")


def test_the_doctor_reads_the_server_s_table(capsys: pytest.CaptureFixture[str]) -> None:
    file = write('[server]\ndatabase = "sqlite:///elsewhere.db"\nworkers = 3\n')
    assert main(["doctor", "--config", file]) in {0, 1}
    assert "sqlite:///elsewhere.db " in capsys.readouterr().out


def test_passwords_are_hidden(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIFESIGN_SERVER_DATABASE", "postgresql://ah:hunter2@db/ah")
    assert shown(capsys, "serve")["database"] == ("postgresql://ah:...@db/ah", "environment")


@pytest.mark.parametrize("password", ["correct hunter2", "x@y/hunter2", "x@y:hunter2"])
def test_password_that_is_not_encoded_is_hidden(password: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command, table, code in ((["serve"], "server", 3), (["crawl", "x.yml"], "prober", 0)):
        complain.cache_clear()
        file = write(f'[{table}]\ndatabase = "postgresql://ah:{password}@db/ah"\n')
        Path(file).chmod(0o644)
        assert main([*command, "--show-config", "--config", file]) == code
        captured = capsys.readouterr()
        assert ("postgresql://..." in captured.out) is (code == 0)
        assert "(mode 0644)" in captured.err
        assert "hunter2" not in captured.out + captured.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\n\nprot = 3\n", "lifesign.toml: line 3: /server/prot: "),
        ("\n[servre]\nport = 3\n", "lifesign.toml: line 2: /servre: "),
        ("port = 3\n", "lifesign.toml: line 1: /port: "),
        ("[server]\nport = {a = 1}\n", "lifesign.toml: line 2: /server/port: "),
        ('[server]\ntrusted_proxies = ["a,b"]\n', "line 2: /server/trusted_proxies: expected a text"),
        ("[server]\nconfig = 'a'\n", "line 2: /server/config: "),
        ("[server]\nport = \n", "lifesign.toml: line 2: Invalid value"),
        ("[server]\nport = 1\nport = 2\n", "lifesign.toml: line 3: "),
        ("[server]\nhost = '\udcff'\n", "lifesign.toml: line 2: expected text in UTF-8"),
        ("#" * 70_000, " 65536 bytes"),
    ],
)
def test_errors_name_their_line(text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("lifesign.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert main(["serve", "--config", "lifesign.toml", "--show-config"]) == 3
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ['port = "x"', "port = 70000", 'log_format = "xml"', "workers = 0"])
def test_invalid_value_is_reported_with_its_name(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--config", write(f"[server]\n{text}\n")]) == 3
    assert f"line 2: /server/{text.partition(' ')[0]}: " in capsys.readouterr().err


def test_missing_file_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--config", "none.toml"]) == 3
    assert "a readable file" in capsys.readouterr().err


def test_every_setting_is_documented_with_its_default() -> None:
    assert pages()["configuration.md"] == TEXT, "run: make schemas"


def test_table_of_settings_keeps_meanings_and_corrects_the_rest() -> None:
    present = (
        "| `port` | `LIFESIGN_SERVER_PORT` | `-p` | `9` | a text \\| of [the page](a.md) |\n"
        "| `gone` | `LIFESIGN_SERVER_GONE` | `--gone` |  | removed |\n"
    )
    rows = settings_table("serve", "server", present).splitlines()
    assert "| `port` | `LIFESIGN_SERVER_PORT` | `--port` | `8440` | a text \\| of [the page](a.md) |" in rows
    sweep = "| `sweep_interval` | `LIFESIGN_SERVER_SWEEP_INTERVAL` | `--sweep-interval` | `0.5s` |"
    settings = dict(settings_of(COMMANDS.commands["serve"], "server"))
    help_text = settings["sweep_interval"].help.rstrip(".")
    assert f"{sweep} {help_text[0].lower()}{help_text[1:]} |" in rows
    assert any(row.endswith(" | TLS certificate with its chain, as PEM |") for row in rows)
    assert not [row for row in rows if "GONE" in row]


@pytest.mark.parametrize("name", ["requests_per_second", "request_burst"])
def test_per_process_limits_are_documented_as_such(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}` \|.*", TEXT, re.MULTILINE)
    (setting,) = (
        each for result, each in settings_of(COMMANDS.commands["serve"], "server") if result == name
    )
    assert "each server process counts separately" in setting.help
    assert setting.help[1:].rstrip(".") in row


def test_every_variable_is_documented() -> None:
    sources = (REPOSITORY / "src").rglob("*.py")
    named = {name for file in sources for name in re.findall(r'"(LIFESIGN_[A-Z_]*[A-Z])"', file.read_text())}
    documented = set(re.findall(r"`(LIFESIGN_[A-Z_]+)`", TEXT))
    assert {name for name in named if name not in documented} == set()


@pytest.mark.parametrize("show", [[], ["--show-config"]])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = 99999", "/server/port: expected at most 65535; got 99999"),
        (
            "event_retention = -1",
            "/server/event_retention: expected a duration such as 30s, 5m, 1h or 2d, or a",
        ),
        ('event_retention = "1h"', "/server/event_retention: expected at least 1d; got '1h'"),
        ("event_retention = 3600", "/server/event_retention: expected at least 1d; got '1h'"),
        ('dialect = "foo"', "/server/dialect: expected one of 'openintent'; got 'foo'"),
        ("database = 5", "/server/database: expected a text in quotes; got 5"),
        ("host = true", "/server/host: expected a text in quotes; got true"),
        (
            "sweep_interval = true",
            "/server/sweep_interval: expected a duration such as 30s, 5m, 1h or 2d, or a",
        ),
        ('sweep_interval = "2m"', "/server/sweep_interval: expected at most 1m; got '2m'"),
        (
            'mass_exit_max_suspension = "2s"',
            (
                "/server/mass_exit_max_suspension: "
                "expected mass_exit_max_suspension to be at least mass_exit_cadence"
            ),
        ),
        ('port = "8440"', '/server/port: expected a whole number, without quotes; got "8440"'),
        ("port = 1.5", "/server/port: expected a whole number; got 1.5"),
        ('port = ["1"]', "/server/port: expected a whole number; got a list"),
        (
            'open_dashboard = "yes"',
            '/server/open_dashboard: expected true or false, without quotes; got "yes"',
        ),
        ("open_dashboard = 1", "/server/open_dashboard: expected true or false; got 1"),
        ('tls_key = ["a"]', "/server/tls_key: expected a text in quotes; got a list"),
        ('host = ""', "/server/host: expected an address or a name; got ''"),
        ('host = "a..b"', "/server/host: expected an address or a name; got 'a..b'"),
        ('tls_key = "none.pem"', "/server/tls_key: expected tls_certificate beside it"),
        ('tls_certificate = "none.pem"', "/server/tls_certificate: expected tls_key beside it"),
        ('archive_dir = "/dev/null/a"', "/server/archive_dir: expected a directory that this user can"),
        (
            'public_url = "https://x.example/path?x=1"',
            "/server/public_url: expected an http or https URL of a host",
        ),
        ('database = "sqlite://"', "/server/database: expected a file"),
        ('database = "mysql://a/b"', "/server/database: expected sqlite:///FILE"),
    ],
)
def test_invalid_value_is_reported_with_its_line(
    text: str, message: str | None, show: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--config", write(f"[server]\nworkers = 1\n{text}\n"), *show]) == 3
    output = capsys.readouterr().err
    if message is None:
        assert output.startswith("lifesign: --tls-certificate: ")
        return
    assert output.startswith(f"lifesign: lifesign.toml: line 3: {message}")


@pytest.mark.parametrize("show", [[], ["--show-config"]])
def test_unresolvable_host_is_reported_before_the_server_starts(
    show: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--host", "none.invalid", "--port", "0", *show]) == 1
    output = capsys.readouterr()
    assert "none.invalid, port 0: " in output.err
    assert output.out == ""


def test_environment_variables_are_converted_to_the_type_of_the_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIFESIGN_SERVER_PORT", "8441")
    monkeypatch.setenv("LIFESIGN_SERVER_OPEN_DASHBOARD", "yes")
    found = shown(capsys, "serve")
    assert (found["port"], found["open_dashboard"]) == ((8441, "environment"), (True, "environment"))


def test_invalid_variable_is_reported_as_such_and_an_option_by_its_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in (("PORT", "99999"), ("TASK_RETENTION", "0s"), ("DIALECT", "foo")):
        with monkeypatch.context() as patch:
            patch.setenv(f"LIFESIGN_SERVER_{variable}", value)
            assert main(["serve"]) == 3
            output = capsys.readouterr().err
            assert output.startswith(f"lifesign: LIFESIGN_SERVER_{variable}: ")
            assert "--" not in output.replace("lifesign serve --help", "")
    assert main(["serve", "--dialect", "foo"]) == 3
    assert capsys.readouterr().err.startswith("lifesign: --dialect: expected one of 'openintent'")


@pytest.mark.parametrize(
    ("command", "variable", "meant"),
    [
        ("serve", "LIFESIGN_SERVER_PROT", "LIFESIGN_SERVER_PORT"),
        ("crawl x.yml", "LIFESIGN_PROBER_METRIC", "LIFESIGN_PROBER_METRICS"),
    ],
)
def test_misspelt_variable_is_named_with_a_suggestion(
    command: str,
    variable: str,
    meant: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, "5")
    assert main([*command.split(), "--show-config"]) == 0
    output = capsys.readouterr().err
    assert ({variable, meant} <= set(re.findall(r"\w+", output)), output.count("\n")) == (True, 1)
    monkeypatch.delenv(variable)
    assert main([*command.split(), "--show-config"]) == 0
    assert capsys.readouterr().err == ""


def test_some_of_many_unknown_variables_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        monkeypatch.setenv(f"LIFESIGN_SERVER_{'X' * 500}{number}\n", "x")
    assert main(["serve", "--show-config"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 20
    assert all(len(line) < 200 for line in lines)


@pytest.mark.parametrize("network", ["0.0.0.0/0", "::/0", "10.0.0.0/8,0.0.0.0/0"])
def test_trusting_all_proxies_is_warned_about(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--trusted-proxies", network, "--show-config"]) == 0
    assert "trusted_proxies" in capsys.readouterr().err
    assert main(["serve", "--trusted-proxies", "10.0.0.0/8", "--show-config"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("network", ["10.0.0.1/8", "x", "10.0.0.0/99"])
def test_invalid_network_is_reported_with_the_expected_form(
    network: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--trusted-proxies", network, "--show-config"]) == 3
    output = capsys.readouterr().err
    assert output.startswith("lifesign: --trusted-proxies: ")
    assert "Value error" not in output
    assert "rules allow" not in output


def test_commands_read_the_database_from_the_servers_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write('[server]\ndatabase = "sqlite:///ours.db"\nport = 9000\n')
    assert main(["migrate", "--config", file]) == 0
    monkeypatch.setenv("LIFESIGN_SERVER_CONFIG", file)
    assert main(["keys", "create", "--role", "admin", "--name", "me"]) == 0
    for arguments in (["keys", "list"], ["events", "verify"], ["backup", "kept.gz"]):
        assert main(arguments) == 0, capsys.readouterr().err
    assert not Path("lifesign.db").exists()
    assert "me" in capsys.readouterr().out
    # Options take precedence over the file.
    assert main(["keys", "list", "--database", "sqlite:///others.db"]) == 3
    assert "others.db" in capsys.readouterr().err


def test_password_in_a_world_readable_file_is_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    complain.cache_clear()
    file = write('[server]\ndatabase = "postgresql://ah:secret-word@db/ah"\n')
    Path(file).chmod(0o644)
    assert main(["serve", "--config", file, "--show-config"]) == 0
    complaint = capsys.readouterr().err
    assert re.search(rf"\bpassword in {file} .*\(mode 0644\)", complaint)
    assert "secret-word" not in complaint
    Path(file).chmod(0o600)
    complain.cache_clear()
    assert main(["serve", "--config", file, "--show-config"]) == 0
    assert "open to others" not in capsys.readouterr().err


@pytest.mark.parametrize(("mode", "is_warned"), [(0o666, True), (0o644, False)])
def test_settings_file_that_others_can_change_is_a_warning(
    capsys: pytest.CaptureFixture[str], mode: int, *, is_warned: bool
) -> None:
    complain.cache_clear()
    file = write('[prober]\nregistry = "http://127.0.0.1:8440"\n')
    Path(file).chmod(mode)
    read_config(Path(file), "prober")
    assert ("mode 0666" in capsys.readouterr().err) is is_warned


def test_misspelt_setting_of_a_file_has_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--config", write("[server]\nwokers = 2\n")]) == 3
    assert "is workers meant" in capsys.readouterr().err
