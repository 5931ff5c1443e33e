"""The commands of each guide lead to the health that the guide shows."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.preloaded import PreloadedProcess, run
from tests.support.servers import REPOSITORY, Server, serving, until

GUIDES = sorted(
    path for path in (REPOSITORY / "docs" / "guides").glob("*.md") if "uvicorn --app-dir" in path.read_text()
)
# Their SDKs exclude those of the tests: `make test-sdks` and `make test` create these environments.
ELSEWHERE = {
    "a2a-sdk-03": ".venv-a2a03",
    **dict.fromkeys(("fasta2a", "flask", "google-adk", "python-a2a", "strands"), ".venv-sdks"),
}


def _of_guide(path: Path) -> object:
    marks = [pytest.mark.sdks] if ELSEWHERE.get(path.stem) == ".venv-sdks" else []
    return pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.skipif(shutil.which("curl") is None, reason="NOT TESTED: curl is absent (apt-get install curl)")
@pytest.mark.parametrize("guide", [_of_guide(path) for path in GUIDES])
def test_commands_of_a_guide_give_the_health_that_it_shows(guide: Path, tmp_path: Path) -> None:
    text = guide.read_text()
    python = Path(sys.executable)
    if guide.stem in ELSEWHERE:
        python = REPOSITORY / ELSEWHERE[guide.stem] / "bin" / "python"
        if not python.exists():
            pytest.skip(f"NOT TESTED: {python} is absent; `make test-sdks` makes it")
    (directory, app) = re.findall(r"^uvicorn --app-dir (\S+) (\S+)$", text, re.MULTILINE)[0]
    (shown,) = re.findall(r"response ratio [\d.]+ over \d+ requests", text)
    (asked,) = re.findall(r"^```sh\n(ask\(\).*?)^```", text, re.MULTILINE | re.DOTALL)
    command = [str(python), "-m", "uvicorn", "--app-dir", directory, app, "--port", "{port}"]
    is_elsewhere = guide.stem in ELSEWHERE
    source = {"PYTHONPATH": str(REPOSITORY / "src")} if is_elsewhere else {}
    start = subprocess.Popen if is_elsewhere else PreloadedProcess
    with serving(command, log=tmp_path / "log", env=source, start=start) as agent:
        subprocess.run(
            ["/bin/bash", "-c", asked.replace("8000", str(agent.port))],
            check=True,
            capture_output=True,
            timeout=120,
        )
        # An answer through WSGI is counted a moment later, and a document is made once a minute.
        until(f"it says: {shown}", lambda: shown in _checked(agent))


def _checked(agent: Server) -> str:
    return run("check", f"http://127.0.0.1:{agent.port}").stdout
