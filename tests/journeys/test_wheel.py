"""The wheel contains only what is needed to wrap an agent; the sdist contains the repository."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.support.repository import REPOSITORY, tracked_files
from tools.pypi_readme import pypi_readme

from lifesign.domain.common.project import PROJECT_URL, install_command

# Drives the middleware by hand, as a server would: there is no other library to do it.
AGENT = """
import asyncio, importlib.metadata, json, sys
from lifesign import AgentHealthMiddleware

async def agent(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})

app = AgentHealthMiddleware(agent, agent_id="https://agent.test/")

async def ask(path):
    sent = []
    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}
    async def send(message):
        sent.append(message)
    scope = {"type": "http", "method": "GET", "path": path, "root_path": "", "headers": []}
    await app(scope, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()

async def main():
    for _ in range(12):
        assert await ask("/") == (200, "hello")
    status, document = await ask("/.well-known/agent-health")
    print(json.dumps({
        "status": status,
        "document": json.loads(document),
        "modules": sorted({name.partition(".")[0] for name in sys.modules}),
        "installed": sorted(found.metadata["Name"].lower() for found in importlib.metadata.distributions()),
    }))

asyncio.run(main())
"""

CONTAINERFILE = REPOSITORY / "docs/operating/Containerfile"
UV = shutil.which("uv", path=Path(sys.executable).parent) or shutil.which("uv")
"""It takes a fraction of pip's time."""
FOREIGN = {"aiohttp", "starlette", "sqlalchemy", "typer", "rich", "uvicorn"}

pytestmark = pytest.mark.skipif(UV is None, reason="NOT BUILT: uv is absent; `make .venv/.test` installs it")


# pytest-xdist takes tests of one module from a process and gives them to others later: a fixture of the
# module would be built again.
@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the files that the Containerfile copies."""
    directory, sources = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("sources")
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", CONTAINERFILE.read_text(), re.MULTILINE)
    for name in " ".join(copied).split():
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
        copy(REPOSITORY / name, sources / name)
    run(UV, "build", "--quiet", "--wheel", "--out-dir", directory, sources)
    (built,) = directory.glob("lifesign-*.whl")
    return built


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of executables of an environment into which only the wheel was installed."""
    directory = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", "--without-pip", directory)
    scripts = directory / "bin"
    run(UV, "pip", "install", "--quiet", "--python", scripts / "python", wheel)
    return scripts


def run(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_contains_the_package_and_its_type_information(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    package = {name for name in names if name.startswith("lifesign/")}
    assert "lifesign/py.typed" in package
    assert "lifesign/middleware/asgi.py" in package
    migrations = "lifesign/storage/migrations"
    assert {f"{migrations}/env.py", f"{migrations}/versions/0001_first_tables.py"} <= package
    # Nothing of the tests, and no schema: those are read in the repository, or in the sdist.
    assert all(".dist-info/" in name for name in set(names) - package)


def test_description_of_the_wheel_needs_no_file_of_the_repository(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = archive.read(name).decode()
    assert "Description-Content-Type: text/markdown" in metadata
    assert metadata.endswith(pypi_readme((REPOSITORY / "README.md").read_text(), PROJECT_URL))
    assert ("Project-URL" in metadata) == bool(PROJECT_URL)


def test_middleware_needs_only_pydantic_and_hdrhistogram(environment: Path) -> None:
    found = json.loads(run(environment / "python", "-c", AGENT))
    assert found["status"] == 200
    assert found["document"]["health"]["status"] == "healthy"
    assert found["document"]["calibration"]["sample_count"] == 12
    assert not FOREIGN & set(found["modules"])
    assert not FOREIGN & set(found["installed"])
    assert {"lifesign", "hdrhistogram", "pydantic"} <= set(found["installed"])


def test_command_without_its_extra_names_the_install_command(environment: Path) -> None:
    done = subprocess.run(
        [environment / "lifesign", "check", "https://agent.test"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert install_command("client") in done.stderr
    assert "Traceback" not in done.stderr


def test_client_without_its_extra_names_the_install_command(environment: Path) -> None:
    done = subprocess.run(
        [environment / "python", "-c", "from lifesign.client import fetch_health"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "No module named 'aiohttp'" in done.stderr


def test_sdist_contains_each_file_of_the_repository(tmp_path: Path) -> None:
    run(UV, "build", "--quiet", "--sdist", "--out-dir", tmp_path, REPOSITORY)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {str(file.relative_to(REPOSITORY)) for file in tracked_files()} <= held
