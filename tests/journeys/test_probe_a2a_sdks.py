"""Probes of real A2A agents, with messages in every variant.

Agents on both lines of the A2A SDK run on real sockets, bare and wrapped, and act on the first word of a
message.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.agent_check import card
from tests.support.hostile_server import CARD_PATH, as_json
from tests.support.hostile_server import serving as serving_cards
from tests.support.probing import layer, probing, results
from tests.support.servers import REPOSITORY, Server, free_port, serving

from lifesign.domain.health.document import HealthStatus

AGENTS = {
    "1.3": (Path(sys.executable), "tests/support/a2a_agent_13.py"),
    "0.3.26": (REPOSITORY / ".venv-a2a03" / "bin" / "python", "tests/support/a2a_agent_03.py"),
}
EXPECTED = {
    "ok": "ok", "message": "ok", "reject": "ok", "input": "ok", "auth": "gated",
    "fail": "http_error", "raise": "http_error", "raise-first": "http_error",
}  # fmt: skip
# The REST binding of 0.3.26 answers a send at once, with a submitted task, so that the task is polled. A task
# that raises stays submitted until the probe ends, which takes too long here.
AT_ONCE = {name: result for name, result in EXPECTED.items() if name != "raise"}


@dataclass(frozen=True)
class Way:
    """An agent's interface in its card, and the effect on a message."""

    sdk: str
    path: str
    binding: str
    version: str | None
    spellings: int
    """How many it takes until one is understood."""
    expected: dict[str, str] = field(default_factory=lambda: EXPECTED, repr=False)

    def __str__(self) -> str:
        return f"{self.sdk} {self.path} {self.binding} {self.version}"


WAYS = [
    Way("1.3", "/", "JSONRPC", "1.0", 1),
    Way("1.3", "/", "JSONRPC", "0.3.0", 1),
    Way("1.3", "/", "JSONRPC", None, 1),
    Way("1.3", "/", "JSONRPC", "0.1", 2),
    Way("1.3", "/rest", "HTTP+JSON", "1.0", 1),
    Way("1.3", "/rest", "HTTP+JSON", "0.3.0", 1),
    Way("0.3.26", "/", "JSONRPC", "0.3.0", 1),
    Way("0.3.26", "/", "JSONRPC", "1.0", 2),
    Way("0.3.26", "/", "JSONRPC", "0.1", 2),
    Way("0.3.26", "/rest", "HTTP+JSON", "0.3.0", 1, AT_ONCE),
    Way("0.3.26", "/rest/v1", "HTTP+JSON", "0.3.0", 1, AT_ONCE),
    Way("0.3.26", "/rest", "HTTP+JSON", "1.0", 2, AT_ONCE),
]


class Agents:
    """The agents of both SDKs, each started on first use."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._running: dict[tuple[str, str], Server] = {}
        self.stack = ExitStack()

    def url(self, sdk: str, kind: str = "bare") -> str:
        python, script = AGENTS[sdk]
        if not python.exists():
            pytest.skip(f"NOT TESTED against a2a-sdk {sdk}: {python} is absent; `make test` makes it")
        if (sdk, kind) not in self._running:
            port = free_port()
            self._running[sdk, kind] = self.stack.enter_context(
                serving(
                    [str(python), script, kind, "{port}"],
                    log=self._log,
                    port=port,
                    env={
                        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")]),
                        "AGENT_URL": f"http://127.0.0.1:{port}/",
                    },
                )
            )
        return f"http://127.0.0.1:{self._running[sdk, kind].port}"


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    agents = Agents(tmp_path_factory.mktemp("a2a") / "log")
    with agents.stack:
        yield agents


@pytest.mark.parametrize("sdk", AGENTS)
async def test_a_bare_agent_is_alive_by_its_card_and_its_interface(agents: Agents, sdk: str) -> None:
    async with probing() as probes:
        observation = await probes.see(agents.url(sdk))
        assert results(observation) == {"discovery": "ok", "transport": "ok", "readiness": "not_an_agent"}
        assert layer(observation.transport).status_code == 405
        assert probes.memory.protocol_version == ("1.0" if sdk == "1.3" else "0.3.0")
        assert (observation.card_etag is not None) == (sdk == "1.3")
        assert {request.method for request in probes.witness.requests} == {"GET"}


@pytest.mark.parametrize("sdk", AGENTS)
async def test_wrapped_agent_also_reports_its_health(agents: Agents, sdk: str) -> None:
    async with probing() as probes:
        observation = await probes.see(agents.url(sdk, "wrapped"))
        assert results(observation) == {"discovery": "ok", "transport": "ok", "readiness": "ok"}
        assert observation.document is not None
        assert observation.document.status is HealthStatus.UNKNOWN, "it has had no requests"
        assert layer(observation.readiness).reason == ""
        again = await probes.see(agents.url(sdk, "wrapped"))
        assert results(again) == {"transport": "ok", "readiness": "ok"}
        assert probes.witness.answers[-1].phases is not None
        assert len(probes.witness.requests) == 5


async def test_unchanged_sdk_card_is_answered_with_status_304(agents: Agents) -> None:
    async with probing() as probes:
        await probes.see(agents.url("1.3"))
        before = probes.memory
        observation = await probes.see(agents.url("1.3"), at_s=time.time() + 172_800)
        assert layer(observation.discovery).status_code == 304
        assert probes.memory.card_digest == before.card_digest
        assert probes.memory.interface_url == before.interface_url


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_sdk_agent_accepts_the_message_for_any_version_in_its_card(agents: Agents, way: Way) -> None:
    interface = {"url": agents.url(way.sdk) + way.path, "protocolBinding": way.binding}
    members = card(supportedInterfaces=[interface | {"protocolVersion": way.version}])
    found: dict[str, str] = {}
    async with serving_cards({CARD_PATH: as_json(members)}) as cards:
        for behaviour in way.expected:
            message = {"text": f"{behaviour} please"}
            async with probing(ask={"transport": False, "health": False, "message": message}) as probes:
                answered = layer((await probes.see(cards.url)).message)
            found[behaviour] = answered.result.value
            posts = [request for request in probes.witness.requests if request.method == "POST"]
            assert len(posts) == way.spellings, answered.reason
    assert found == way.expected
