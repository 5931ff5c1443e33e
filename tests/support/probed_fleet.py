"""A fleet of registered agents that a prober reports."""

from typing import Any

from tests.support.databases import WoundClock
from tests.support.registry_api import RegistryApi

from lifesign.domain.models.base import moment

CLASS = "10.1.0.0/16"
CARD = "https://agent-{}.example/.well-known/agent-card.json"


def result(clock: WoundClock, number: int, outcome: str = "ok", **members: Any) -> dict[str, Any]:
    """Return the result of a probe just now of an agent with an address of its own."""
    return {
        "agent_id": f"agent-{number}",
        "observed_at": moment(clock.at_s).isoformat(),
        "transport": {"result": outcome},
        "network_class": CLASS,
        "address": f"10.1.0.{number}",
        **members,
    }


def unwitnessed(clock: WoundClock, number: int) -> dict[str, Any]:
    return result(clock, number, "not_measured", inconclusive_reason="no_witness")


async def report(api: RegistryApi, *observations: dict[str, Any]) -> dict[str, Any]:
    """Report what probes saw, and return the answer."""
    answer = await api.report(*observations)
    assert answer.status == 200, answer.body
    return dict(answer.json())


async def fleet(api: RegistryApi, size: int) -> None:
    """Register agents that are probed, and let all of them answer once."""
    for number in range(size):
        await api.register(f"agent-{number}", monitoring="probe", card_url=CARD.format(number))
    await report(api, *(result(api.clock, number) for number in range(size)))
