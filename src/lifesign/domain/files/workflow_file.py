"""Agents in a workflow file (RFC-0016 12).

Only the section `agents` is read; other sections belong to other programs.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from lifesign.domain.errors import InvalidWorkflow
from lifesign.domain.files.yaml_document import YamlDocument
from lifesign.domain.health.document import INTEGRAL_FLOAT, write_short
from lifesign.domain.models.agents import HeartbeatConfig
from lifesign.domain.models.base import Body, Capabilities, Load, Metadata, Name, RoleId, Seconds, Url

MAX_AGENTS = 1_000
MAX_INSTANCES = 1_000_000


class DeclaredCapacity(Body):
    """Capacity of one instance. Advisory."""

    max_concurrent_tasks: Load | None = None


class PoolSize(Body):
    """Desired number of instances. Advisory: autoscalers may read it; the registry does not enforce it."""

    min_instances: Annotated[int, Field(ge=0, le=MAX_INSTANCES, strict=True), INTEGRAL_FLOAT] | None = None
    max_instances: Annotated[int, Field(ge=0, le=MAX_INSTANCES, strict=True), INTEGRAL_FLOAT] | None = None

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        least, most = self.min_instances, self.max_instances
        if least is not None and most is not None and least > most:
            raise PydanticCustomError("pool_out_of_order", "min_instances must be at most max_instances")
        return self


class AgentDeclaration(Body):
    """One entry of `agents`: the registration that all its instances send, and their pool."""

    role_id: RoleId
    """Default: the key of the entry."""
    name: Name | None = None
    capabilities: Capabilities = Field(default_factory=list)
    capacity: DeclaredCapacity = DeclaredCapacity()
    heartbeat: HeartbeatConfig | None = None
    """None: the registry's defaults. Absent members have the defaults of RFC-0016."""
    drain_timeout_seconds: Seconds | None = None
    pool: PoolSize | None = None
    metadata: Metadata | None = None
    endpoint: Url | None = None
    card_url: Url | None = None

    def registration(self, agent_id: str | None = None) -> dict[str, Any]:
        """Return the body of `POST /api/v1/agents` that registers one instance (RFC-0016 3.1).

        Without an `agent_id` the registry creates one. Undeclared members are omitted.
        """
        heartbeat = {} if self.heartbeat is None else self.heartbeat.model_dump()
        drain_s = self.drain_timeout_seconds
        body = {
            "agent_id": agent_id,
            "role_id": self.role_id,
            "name": self.name,
            "capabilities": list(self.capabilities),
            "capacity": self.capacity.model_dump(exclude_none=True),
            "endpoint": self.endpoint,
            "card_url": self.card_url,
            "heartbeat_config": heartbeat,
            "drain_timeout_seconds": None if drain_s is None else write_short(drain_s),
            "metadata": deepcopy(self.metadata),
        }
        return {name: value for name, value in body.items() if value not in (None, {}, [])}


_AGENTS = TypeAdapter(dict[Name, AgentDeclaration])


@dataclass(frozen=True, slots=True)
class Workflow:
    """Agents of a workflow file."""

    agents: Mapping[str, AgentDeclaration]
    """Agents by their key, in the order of the file."""


def read_workflow(text: str) -> Workflow:
    """Read the agents that a workflow file declares; InvalidWorkflow names up to 20 faults.

    A file without the key `agents` is refused: it is more likely a wrong file than an empty fleet.
    """
    document = YamlDocument(text, expected="expected a mapping with the key agents", refuse=InvalidWorkflow)
    section = document.section("agents")
    if not isinstance(section, dict) or len(section) > MAX_AGENTS:
        raise document.refused(("agents",), f"expected a mapping of at most {MAX_AGENTS} agents")
    given = {
        name: {"role_id": name, **entry} if isinstance(entry, dict) else entry
        for name, entry in section.items()
    }
    try:
        agents = _AGENTS.validate_python(given)
    except ValidationError as error:
        raise document.misread(error, AgentDeclaration, at=("agents",), skipped=1) from None
    return Workflow(MappingProxyType(agents))
