"""Scrape targets: the living agents, in the format of Prometheus' HTTP service discovery.

Prometheus reads no pages, so one answer contains all targets. Its number of agents is bounded.
"""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, RootModel

from lifesign.domain.access.permissions import Permission, may
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.models.base import MAX_CAPABILITIES, Body, Capability, RoleId
from lifesign.domain.net.scrape_address import ScrapeAddress, scrape_address
from lifesign.domain.observation.evidence_age import shown_health
from lifesign.registry.errors import TooManyAgents
from lifesign.registry.request_handling.operation import (
    SEPARATED_BY_COMMAS,
    Call,
    Operation,
    OperationReply,
)
from lifesign.storage.agents import search
from lifesign.storage.agents.search import AgentFilter, ListedAgent
from lifesign.storage.engine.transaction import Transaction

MAX_AGENTS: Final = 10_000
"""Maximum of agents in one answer."""
LABEL_PREFIX: Final = "__meta_lifesign_"


class ScrapeQuery(Body):
    """The query of `GET /api/v1/http-sd`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    status: Annotated[tuple[Status, ...], Field(min_length=1), SEPARATED_BY_COMMAS] = (
        Status.ACTIVE,
        Status.UNHEALTHY,
        Status.DRAINING,
    )
    """Statuses, separated by commas: only agents with one of them. Absent: all living agents."""
    role_id: RoleId | None = None
    """Only agents of this pool."""
    capabilities: Annotated[
        tuple[Capability, ...], Field(max_length=MAX_CAPABILITIES), SEPARATED_BY_COMMAS
    ] = ()
    """Capabilities, separated by commas: only agents with at least one of them."""
    include_found: bool = False
    """Also agents that probers found in directories. Prometheus then connects to the hosts in these lists."""


class ScrapeTarget(BaseModel):
    """One agent in Prometheus' form, as one group of targets."""

    targets: Annotated[list[str], Field(min_length=1, max_length=1)]
    """Host and port."""
    labels: dict[str, str]
    """`__scheme__` and labels that begin with `__meta_lifesign_`."""


class ScrapeTargets(RootModel[list[ScrapeTarget]]):
    """All living agents that match and have an address."""


def list_scrape_targets(transaction: Transaction, call: Call) -> OperationReply:
    """Return the host and port of each living agent, with labels.

    The address is that of the agent's endpoint, else of its card. Agents without an address, or with one that
    is never contacted, are omitted. If more than 10,000 agents match, the answer is TooManyAgents.
    """
    query = call.query_as(ScrapeQuery)
    wanted = AgentFilter(
        agent_id=None if may(call.caller, Permission.LIST_AGENTS) else call.caller.agent_id,
        statuses=query.status,
        capabilities=query.capabilities,
        role_id=query.role_id,
        is_registered=not query.include_found,
    )
    found = search.listing(transaction, wanted, after=None, limit=MAX_AGENTS + 1)
    if len(found) > MAX_AGENTS:
        raise TooManyAgents(MAX_AGENTS)
    groups = [_group(agent, transaction.now_s) for agent in found]
    return OperationReply(content=[group for group in groups if group is not None])


def _group(agent: ListedAgent, now_s: float) -> dict[str, object] | None:
    """Return an agent in Prometheus' form; None without an address.

    Thousands are written at once: models would cost more than the query.
    """
    urls = (agent.endpoint, agent.card_url, agent.target_url)
    read = ((url, scrape_address(url)) for url in urls if url is not None)
    known = next(((url, address) for url, address in read if isinstance(address, ScrapeAddress)), None)
    if known is None:
        return None
    url, address = known
    health, _ = shown_health(HealthStatus(agent.health), agent.evidence, now_s)
    labels = {
        "__scheme__": address.scheme,
        f"{LABEL_PREFIX}agent_id": agent.agent_id,
        f"{LABEL_PREFIX}status": agent.status,
        f"{LABEL_PREFIX}health": health.value,
        f"{LABEL_PREFIX}url": url,
    }
    if agent.role_id is not None:
        labels[f"{LABEL_PREFIX}role_id"] = agent.role_id
    return {"targets": [address.host_and_port], "labels": labels}


OPERATIONS = (
    Operation(
        method="GET",
        path="/api/v1/http-sd",
        summary="List living agents as scrape targets, for Prometheus",
        action=Permission.LIST_AGENTS,
        function=list_scrape_targets,
        is_write=False,
        query=ScrapeQuery,
        answer=ScrapeTargets,
        errors=(409,),
    ),
)
