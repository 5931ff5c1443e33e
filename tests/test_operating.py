"""Deployment files and commands can be used, as far as one machine can show it."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from tests.support.servers import PATIENCE_SECONDS, REPOSITORY

from lifesign.adapter.main_loop import DRAIN_SECONDS, SLACK_SECONDS
from lifesign.adapter.task_run import GRACE_SECONDS
from lifesign.cli import application, main
from lifesign.cli.options.config_file import settings_of
from lifesign.cli.output.exit_codes import ExitCode
from lifesign.prober.definition.file import read_definition_file

DIRECTORY = REPOSITORY / "docs" / "operating"
UNITS = sorted(DIRECTORY.glob("*.service"))
COMPOSE: dict[str, Any] = yaml.safe_load((DIRECTORY / "compose.yaml").read_text())
OURS = {name: service for name, service in COMPOSE["services"].items() if name != "postgres"}
COMMANDS: Any = typer.main.get_command(application._application)


def check_command(words: list[str]) -> None:
    """Fail for a command or an option that is not there."""
    command = COMMANDS.commands[words[0]]
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert [word for word in words if word.startswith("-") and word not in known] == []


@pytest.mark.parametrize("name", sorted(OURS))
def test_compose_service_runs_an_existing_command_without_privileges(name: str) -> None:
    service = OURS[name]
    check_command(service["command"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    variables = {parameter.envvar for _, parameter in settings_of(COMMANDS.commands["serve"], "server")}
    assert {
        each for each in service.get("environment", ()) if each.startswith("LIFESIGN_SERVER_")
    } <= variables


def test_invalid_definition_is_reported_once_and_starts_no_prober(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, prober = OURS["definition"], OURS["prober"]
    assert prober["depends_on"]["definition"] == {"condition": "service_completed_successfully"}
    assert (first["restart"], prober["restart"]) == ("no", "unless-stopped")
    read, mounted = first["command"][1], first["volumes"][0]
    assert mounted in prober["volumes"]
    assert read == prober["command"][1] == mounted.split(":")[1]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "probe.yml").write_text((DIRECTORY / "probe.yml").read_text())
    arguments = ["probe.yml" if word == read else word for word in first["command"]]
    assert main(arguments) == 0
    (tmp_path / "probe.yml").write_text("name: all\ntargets: [agent.example]\n")
    assert main(arguments) == ExitCode.USAGE
    assert "contact" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["probe.yml"]


def test_service_files_name_existing_dependencies() -> None:
    for service in COMPOSE["services"].values():
        assert set(service.get("depends_on", {})) <= set(COMPOSE["services"])
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DIRECTORY / source).exists()
    build = OURS["registry"]["build"]
    assert (DIRECTORY / build["context"] / build["dockerfile"]).samefile(DIRECTORY / "Containerfile")


def test_secrets_are_in_no_file_of_the_project() -> None:
    text = (DIRECTORY / "compose.yaml").read_text()
    assert re.findall(r"PASSWORD: (?!\$\{)", text) == []
    assert ":${POSTGRES_PASSWORD:?" in text
    # Another user must not open the file before its mode is changed.
    (create,) = re.findall(r"^#  (.* > \.env.*)$", text, re.MULTILINE)
    assert create.strip().startswith("(umask 077; ")


def test_image_is_built_from_existing_files_and_runs_without_root() -> None:
    text = (DIRECTORY / "Containerfile").read_text()
    (extras,) = re.findall(r"'\.\[([a-z,]+)\]'", text)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        assert all((REPOSITORY / word).exists() for word in line.split()[:-1])
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", text, re.MULTILINE)
    # Sources of the wheel are copied.
    assert {"README.md", "LICENSE", "src", "tools"} <= set(text.split())
    (command,) = re.findall(r"^CMD (\[.+\])$", text, re.MULTILINE)
    check_command(yaml.safe_load(command))


def test_database_marker_has_its_own_volume() -> None:
    image = (DIRECTORY / "Containerfile").read_text()
    (place,) = re.findall(r"^ENV LIFESIGN_SERVER_STATE_DIR=(\S+)$", image, re.MULTILINE)
    (volumes,) = re.findall(r"^VOLUME (\[.+\])$", image, re.MULTILINE)
    (working,) = re.findall(r"^WORKDIR (/data)$", image, re.MULTILINE)
    assert {place, working} <= set(yaml.safe_load(volumes))
    mounted = dict(volume.split(":")[::-1] for volume in OURS["registry"]["volumes"])
    assert mounted[place] != mounted[working]
    unit = (DIRECTORY / "lifesign-registry.service").read_text()
    (variable,) = re.findall(r"^Environment=LIFESIGN_SERVER_STATE_DIR=%S/(\S+)$", unit, re.MULTILINE)
    (directories,) = re.findall(r"^StateDirectory=(.+)$", unit, re.MULTILINE)
    assert variable in directories.split()[1:]
    assert (
        f"LIFESIGN_SERVER_STATE_DIR=/var/lib/{variable}\n" in (DIRECTORY.parent / "operating.md").read_text()
    )


def test_probe_definition_of_the_compose_files_is_valid() -> None:
    assert read_definition_file(DIRECTORY / "probe.yml").canaries


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_unit_runs_an_existing_command(unit: Path) -> None:
    (line,) = re.findall(r"^ExecStart=(.+)$", unit.read_text(), re.MULTILINE)
    program, *words = shlex.split(line)
    assert program == "/opt/lifesign/bin/lifesign"
    check_command(words)
    # The server raises its limit of open files; this filter would kill it for that.
    assert "@resources" not in unit.read_text()
    # A wrong setting is not tried again. After any other end, SIGHUP included, the program starts again.
    assert "\nRestart=always\n" in unit.read_text()
    assert f"\nRestartPreventExitStatus={ExitCode.USAGE.value}\n" in unit.read_text()
    assert "\nStartLimitIntervalSec=0\n" in unit.read_text()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_service_with_a_registry_on_loopback_can_distinguish_users(unit: Path) -> None:
    text = unit.read_text()
    assert "--registry http://127.0.0.1:" not in text or "\nPrivateUsers=" not in text


def test_unit_of_an_adapter_signals_the_adapter_only_and_waits_for_its_drain() -> None:
    text = (DIRECTORY.parent / "adapter.md").read_text()
    (unit,) = re.findall(r"^```ini\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)
    settings = dict(re.findall(r"^(\w+)=(.+)$", unit, re.MULTILINE))
    check_command(shlex.split(settings["ExecStart"].partition(" -- ")[0])[1:])
    assert settings["KillMode"] == "mixed"
    assert int(settings["TimeoutStopSec"]) > DRAIN_SECONDS + GRACE_SECONDS + SLACK_SECONDS
    assert settings["RestartPreventExitStatus"] == str(ExitCode.USAGE.value)


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="NOT RUN: systemd-analyze is absent (apt-get install systemd)",
)
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_a_unit_and_rates_it_hardened(unit: Path, tmp_path: Path) -> None:
    # The program need not be installed here.
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/lifesign/bin/lifesign", "/bin/true"))
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(copy)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert verified.returncode == 0, verified.stderr
    lines = [line for line in verified.stderr.splitlines() if unit.name in line]
    assert lines == []
    result = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(copy)],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-500:]
