import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.preloaded import run
from tests.support.servers import PATIENCE_SECONDS, SCRIPTS

from lifesign.cli import main
from lifesign.cli.options.shell_completion import VARIABLE
from lifesign.domain.access.permissions import Role


def suggestions(words: str, place: int, shell: str = "bash") -> list[str]:
    """Return the suggestions of a shell for a position."""
    variables = {**os.environ, VARIABLE: f"complete_{shell}", "COMP_WORDS": words, "COMP_CWORD": str(place)}
    ran = run(env=variables)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.split()


def test_commands_and_options_are_offered() -> None:
    assert {"doctor", "directories"} <= set(suggestions("lifesign d", 1))
    assert suggestions("lifesign keys ro", 2) == ["rotate"]
    assert {"--port", "--public-url"} <= set(suggestions("lifesign serve --p", 2))
    assert suggestions("lifesign serve --log-format j", 3) == ["json"]
    assert suggestions("lifesign keys create --role ", 4) == [*Role]
    assert {"active", "all"} <= set(suggestions("lifesign agents list --status a", 4))
    assert suggestions("lifesign tasks list --status qu", 4) == ["queued"]
    assert suggestions("lifesign keys list --role a", 4) == ["agent", "admin"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_valid_for_each_shell(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert VARIABLE in script
    if shutil.which(shell) is not None:
        (tmp_path / "script").write_text(script)
        checked = subprocess.run(
            [shell, "-n", str(tmp_path / "script")],
            capture_output=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert checked.returncode == 0, checked.stderr


def test_bash_completes_a_command_by_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    typed = (
        f"source {tmp_path}/script; COMP_WORDS=(lifesign doc); COMP_CWORD=1; "
        "_lifesign_completion lifesign; echo ${COMPREPLY[*]}"
    )
    path = f"{SCRIPTS}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", typed],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ran.stdout.strip() == "doctor", ran.stderr


def test_unsupported_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 3
    output = capsys.readouterr().err
    assert {"'tcsh'", "'bash'", "'zsh'", "'fish'"} <= set(re.findall(r"'\w+'", output))
    assert "Value error" not in output


def test_missing_shell_argument_lists_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion"]) == 3
    output = capsys.readouterr().err
    assert {"bash", "zsh", "fish"} <= set(re.findall(r"\w+", output))
    assert output.count("\n") == 1
