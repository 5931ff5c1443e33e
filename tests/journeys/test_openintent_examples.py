"""Agents of the SDK published with RFC-0016 run with only their import changed. Real processes."""

import ast
import asyncio
import os
import re
import signal
import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.preloaded import PYTHON, PreloadedProcess
from tests.support.registry_server import ADMIN_KEY, KEYS, RegistryServer, registry_server
from tests.support.servers import PATIENCE_SECONDS, REPOSITORY, until

from lifesign.client import RegistryClient
from lifesign.domain.access.permissions import Role

ENVIRONMENT = REPOSITORY / ".venv-openintent"
DECLARED = """
from lifesign.agent import Agent, on_assignment, run_agent

@Agent("{name}"{arguments})
class Silent:
    @on_assignment
    async def work(self, task): ...

run_agent(Silent())
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """A real registry on loopback."""
    with registry_server(tmp_path_factory.mktemp("registry"), sweep_seconds=60) as server:
        yield server


def first_example() -> str:
    """Return the first example of the SDK: the one in the docstring of its module of agents."""
    files = sorted(ENVIRONMENT.glob("lib/python*/site-packages/openintent/agents.py"))
    assert files, f"the openintent SDK is absent; `make {ENVIRONMENT.name}/.installed`"
    docstring = ast.get_docstring(ast.parse(files[0].read_text())) or ""
    found = re.search(r"```python\n(.*?)```", docstring, re.DOTALL)
    assert found is not None
    assert "ResearchAgent.run()" in found[1]
    return textwrap.dedent(found[1])


@contextmanager
def running(
    code: str, registry: RegistryServer, directory: Path, *, by_environment: bool = True
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program; its standard error goes into the file `log`."""
    settings = {"LIFESIGN_REGISTRY": registry.url, "LIFESIGN_KEY": KEYS[Role.ENROLL]}
    program = directory / "program.py"
    program.write_text(code)
    with (
        (directory / "log").open("wb") as log,
        PreloadedProcess(
            [PYTHON, program],
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**os.environ, **(settings if by_environment else {})},
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("by_environment", [True, False], ids=["environment", "arguments"])
async def test_first_example_of_openintent_runs_with_its_import_changed(
    registry: RegistryServer, tmp_path: Path, *, by_environment: bool
) -> None:
    name = f"research-bot-{'env' if by_environment else 'args'}"
    code = first_example().replace("from openintent import", "from lifesign.agent import")
    code = code.replace('"research-bot"', f'"{name}"')
    if not by_environment:
        message = f'base_url="{registry.url}", api_key="{KEYS[Role.ENROLL]}"'
        code = code.replace("ResearchAgent.run()", f"ResearchAgent.run({message})")
    async with RegistryClient(registry.url, key=ADMIN_KEY) as admin:
        task = await admin.tasks.create("Find it out", agent_id=name)
        with running(code, registry, tmp_path, by_environment=by_environment) as process:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (done := await admin.tasks.get(task.task_id)).status != "review":
                    assert process.poll() is None, (tmp_path / "log").read_text()
                    await asyncio.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            code_of_end = await asyncio.to_thread(process.wait, PATIENCE_SECONDS)
    assert (code_of_end, done.output) == (0, {"result": "done"})
    assert "tasks=True" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("arguments", "is_warned"), [("", True), (", tasks=True", False), (", tasks=False", False)]
)
def test_agent_without_a_source_of_work_logs_a_warning_at_start(
    registry: RegistryServer, tmp_path: Path, arguments: str, *, is_warned: bool
) -> None:
    # A key that only enrols registers each of them once.
    name = f"silent{arguments.replace(', tasks=', '-').lower()}"
    code = DECLARED.format(name=name, arguments=arguments)
    with running(code, registry, tmp_path) as process:
        log = tmp_path / "log"
        until("it is registered", lambda: "registered, incarnation" in log.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert ("WARNING" in log.read_text() and "Pass tasks=True to @Agent" in log.read_text()) == is_warned
