"""The official MCP clients, each in a separate process.

The Python SDK, and both lines of the TypeScript SDK: `@modelcontextprotocol/sdk` and `…/client`.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support import preloaded
from tests.support.servers import REPOSITORY

NODE_ROOT: Final = REPOSITORY / ".venv-node"
_PYTHON_PROGRAM: Final = REPOSITORY / "tests" / "support" / "official_client.py"
_NODE_PROGRAM: Final = REPOSITORY / "tests" / "support" / "typescript" / "client.mjs"
_SECONDS: Final = 120.0


@dataclass(frozen=True)
class OfficialClient:
    """One client library, and the generation of the protocol that it begins with."""

    name: str
    sdk: str
    mode: str
    """`legacy` shakes hands; `auto` asks for the newest version first."""

    def command(self, plan: Path) -> list[str]:
        """Return what runs the client; without Node.js, the test fails."""
        if self.sdk == "python":
            return [sys.executable, str(_PYTHON_PROGRAM), str(plan)]
        node = NODE_ROOT / "bin" / "node"
        assert (NODE_ROOT / ".installed").exists(), (
            f"{NODE_ROOT} is absent; `make {NODE_ROOT.name}/.installed`"
        )
        return [str(node), str(_NODE_PROGRAM), str(plan), str(NODE_ROOT)]


CLIENTS: Final = (
    OfficialClient("python legacy", "python", "legacy"),
    OfficialClient("python auto", "python", "auto"),
    OfficialClient("typescript sdk 1", "sdk-1", "legacy"),
    OfficialClient("typescript client 2 legacy", "client-2", "legacy"),
    OfficialClient("typescript client 2 auto", "client-2", "auto"),
)

_LEFT_TO_FAULTS: Final = {"python legacy", "typescript client 2 legacy"}
CLIENTS_OF_EACH_RUN: Final = tuple(client for client in CLIENTS if client.name not in _LEFT_TO_FAULTS)
"""SDK 1 alone speaks the older line of the protocol; in `make faults`, all clients do."""

each_client: Final = pytest.mark.parametrize(
    "client",
    [
        pytest.param(
            client,
            id=client.name.replace(" ", "-"),
            marks=[] if client in CLIENTS_OF_EACH_RUN else [pytest.mark.long],
        )
        for client in CLIENTS
    ],
)


@dataclass(frozen=True)
class Plan:
    """The server and the request; without `command` and `url` the tool proxy of the environment."""

    calls: Sequence[tuple[str, Mapping[str, Any]]]
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None
    token: str | None = None

    def written(self, client: OfficialClient, directory: Path) -> tuple[Path, Path]:
        """Write it down for a client; return that file, and the one with the answers."""
        plan, answers = directory / "plan.json", directory / "answers.json"
        calls = [{"name": name, "arguments": arguments} for name, arguments in self.calls]
        members = {**asdict(self), "calls": calls, "to": str(answers), "sdk": client.sdk, "mode": client.mode}
        plan.write_text(json.dumps(members))
        return plan, answers


@dataclass(frozen=True)
class Answers:
    """The results that a client returned to its caller."""

    tools: list[str]
    answers: list[dict[str, Any]]

    @classmethod
    def read(cls, file: Path) -> "Answers":
        """Return the results that a client has written."""
        return cls(**json.loads(file.read_text()))


def ask(client: OfficialClient, plan: Plan, directory: Path) -> Answers:
    """Have a client carry a plan out."""
    file, answers = plan.written(client, directory)
    program, *arguments = client.command(file)
    if program == preloaded.PYTHON:
        ended = preloaded.run(*arguments, program=program)
    else:
        ended = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    assert ended.returncode == 0, ended.stderr
    return Answers.read(answers)
