from typing import Any

import pytest
from tests.support.agent_check import card
from tests.support.mcp_answers import stateless
from tests.support.message_server import Says, agent
from tests.support.probing import probing, results

from lifesign.domain.mcp.conversation import Generation
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.targets.target import StatedKind, TargetKind

WANTED: dict[str, Any] = {"ask": {"health": False}}
DISPUTED: dict[str, Any] = {"kind": StatedKind.DISPUTED}
MISSING = Says(status=404)
CARD_URL = "https://agent.example/.well-known/agent-card.json"


async def test_disputed_server_stays_alive_and_gets_no_second_request_for_a_card() -> None:
    async with agent(stateless, {}) as serving, probing(**WANTED) as probes:
        url = f"{serving.url}/mcp"
        first, asked = await probes.see(url, **DISPUTED), len(serving.got)
        again = await probes.see(url, **DISPUTED)
        assert [got.method for got in serving.got[asked:]] == ["POST"]
    assert [results(seen) for seen in (first, again)] == [{"discovery": "ok", "transport": "ok"}] * 2
    assert [seen.kind for seen in (first, again)] == [TargetKind.MCP] * 2


async def test_disputed_agent_stays_alive_and_gets_no_post() -> None:
    async with agent(stateless, {}) as serving, probing(**WANTED) as probes:
        serving.card = card(url=serving.url)
        for _ in range(2):
            assert (await probes.see(serving.url, **DISPUTED)).result is ResultClass.OK
    assert serving.posted == []


@pytest.mark.parametrize("memory", [ProbeMemory(), ProbeMemory(mcp_generation=Generation.STATELESS)])
async def test_disputed_target_fails_only_if_it_fails_as_both(memory: ProbeMemory) -> None:
    async with agent(lambda _: MISSING, {}) as serving, probing(**WANTED) as probes:
        serving.others = lambda _: MISSING
        probes.memory = memory
        report = await probes.report(serving.url, **DISPUTED)
        assert report.observation.is_measured_failure
        assert report.memory.failures_in_row == 1
        assert report.requests == len(serving.got)
        assert {got.method for got in serving.got} == {"GET", "POST"}


async def test_disputed_server_that_becomes_an_agent_is_probed_as_one() -> None:
    async with agent(lambda _: MISSING, {}) as serving, probing(**WANTED) as probes:
        serving.card = card(url=serving.url)
        probes.memory = ProbeMemory(mcp_generation=Generation.STATELESS)
        seen = await probes.see(serving.url, **DISPUTED)
        assert (seen.kind, seen.result) == (None, ResultClass.OK)
        assert probes.memory.mcp_generation is None


@pytest.mark.parametrize(
    ("memory", "is_alive"), [(ProbeMemory(), True), (ProbeMemory(card_url=CARD_URL), False)]
)
async def test_login_of_a_disputed_target_hides_no_lost_card(memory: ProbeMemory, *, is_alive: bool) -> None:
    """A server that never answered may require credentials for every POST."""
    async with agent(lambda _: Says(status=401), {}) as serving, probing(**WANTED) as probes:
        serving.others = lambda got: Says(status=401 if got.method == "POST" else 404)
        probes.memory = memory
        seen = await probes.see(f"{serving.url}/mcp", **DISPUTED)
    assert seen.is_liveness_signal is is_alive
    assert seen.is_measured_failure is not is_alive


@pytest.mark.parametrize("is_named", [False, True])
async def test_no_list_makes_a_server_of_the_definition_an_agent(*, is_named: bool) -> None:
    async with agent(stateless, {}) as serving:
        url = f"{serving.url}/mcp"
        async with probing(targets=[url if is_named else f"{serving.url}/other"], **WANTED) as probes:
            seen = await probes.see(url, kind=StatedKind.A2A)
    assert (seen.result is ResultClass.OK) is is_named
