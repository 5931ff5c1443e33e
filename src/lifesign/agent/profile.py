"""Declaration of an agent for its registration (RFC-0016 1, 3.1).

One form for all ways to declare it (decorator, runner, workflow file, ASGI link), and one way to the wire
format.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self, TypedDict
from uuid import uuid4

from lifesign.client.registry_agents import RegistryAgents
from lifesign.client.registry_connection import build_body, members_of, texts
from lifesign.domain.errors import InvalidWorkflow
from lifesign.domain.lifecycle.verdict import DecidingEvidence
from lifesign.domain.models.agents import DEFAULT_DRAIN_SECONDS, AgentRecord, HeartbeatConfig, Registration
from lifesign.domain.models.base import MAX_DURATION_SECONDS
from lifesign.errors import InvalidValue

DRAIN_RESERVE_SECONDS: Final = 10.0
"""Time at the end of a drain for cancelled work to clean up, and for the deregistration."""


def drain_work_s(timeout_s: float) -> float:
    """Return the time for running work in a drain that takes `timeout_s` in the registry.

    The reserve is at most half of the drain.
    """
    return timeout_s - min(DRAIN_RESERVE_SECONDS, timeout_s / 2)


class _MadeUpId(str):
    """A generated id: each run has another one."""

    __slots__ = ()


def _generated_id() -> str:
    return _MadeUpId(f"agent_{uuid4().hex}")


class ProfileSettings(TypedDict, total=False):
    """The fields of an `AgentProfile` without its id, as keyword arguments."""

    role_id: str | None
    name: str | None
    capabilities: Sequence[str]
    capacity: int | None
    endpoint: str | None
    card_url: str | None
    monitoring: DecidingEvidence | str | None
    heartbeat: HeartbeatConfig | Mapping[str, Any] | None
    drain_timeout_seconds: float | None
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProfile:
    """The settings of one agent that a registration sends: id, capabilities, heartbeats and others.

    InvalidValue, with the name in the API, for values that a registry would refuse.
    """

    agent_id: str = field(default_factory=_generated_id)
    """Chosen before it is registered: an answer that is lost must not leave a second agent behind."""
    role_id: str | None = None
    name: str | None = None
    capabilities: Sequence[str] = ()
    capacity: int | None = None
    """Maximum number of concurrent tasks (RFC-0016 `max_concurrent_tasks`)."""
    endpoint: str | None = None
    card_url: str | None = None
    monitoring: DecidingEvidence | str | None = None
    """`both`: a prober also reads its document, at the host of its `card_url`. None: only its heartbeats."""
    heartbeat: HeartbeatConfig | Mapping[str, Any] | None = None
    """A mapping has the names of a workflow file. None: the defaults of RFC-0016: 30, 90 and 300 s."""
    drain_timeout_seconds: float | None = None
    """Time for running work to finish in a drain. The registry waits for `DRAIN_RESERVE_SECONDS` longer."""
    metadata: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        object.__setattr__(self, "capabilities", tuple(texts("capabilities", self.capabilities)))
        given: dict[str, Any] = {
            "agent_id": self.agent_id,
            "role_id": self.role_id,
            "name": self.name,
            "capabilities": list(self.capabilities),
            "capacity": {"max_concurrent_tasks": self.capacity},
            "endpoint": self.endpoint,
            "card_url": self.card_url,
            "heartbeat_config": self.heartbeat,
            "metadata": members_of(self.metadata),
        }
        if self.monitoring is not None:
            given["monitoring"] = self.monitoring
        if self.drain_timeout_seconds is not None:
            given["drain_timeout_seconds"] = self.drain_timeout_seconds
        # From here on, the value has the validated type.
        try:
            read = build_body(Registration, **given)
        except InvalidValue as error:
            # The argument of this class has another name than the member of the API.
            name = error.name.replace("heartbeat_config", "heartbeat", 1)
            raise InvalidValue(name, error.given, error.expected, hint=error.hint) from None
        object.__setattr__(self, "heartbeat", read.heartbeat_config)
        if self.capacity is not None and self.capacity < 1:
            raise InvalidValue("capacity", self.capacity, "1 or more concurrent tasks, or None")

    @classmethod
    def from_workflow(cls, file: str | Path, name: str, agent_id: str | None = None) -> Self:
        """Read a profile from an agent's entry in a workflow file; InvalidWorkflow names the fault."""
        # PyYAML takes 20 ms, which declarations in Python need not spend.
        from lifesign.domain.files.workflow_file import read_workflow  # noqa: PLC0415

        try:
            declared = read_workflow(Path(file).read_text("utf-8")).agents.get(name)
        except InvalidWorkflow as error:
            raise InvalidWorkflow(error.faults, str(file)) from None
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise InvalidValue("workflow file", str(file), f"a readable YAML file ({reason})") from None
        if declared is None:
            raise InvalidValue("name", name, f"an agent that {file} declares")
        own = {} if agent_id is None else {"agent_id": agent_id}
        return cls(
            **own,
            role_id=declared.role_id,
            name=declared.name,
            capabilities=tuple(declared.capabilities),
            capacity=declared.capacity.max_concurrent_tasks,
            endpoint=declared.endpoint,
            card_url=declared.card_url,
            heartbeat=declared.heartbeat,
            drain_timeout_seconds=declared.drain_timeout_seconds,
            metadata=declared.metadata or {},
        )

    @property
    def has_fixed_id(self) -> bool:
        """Whether the agent's id was given, so that a later process can register the same agent again."""
        return not isinstance(self.agent_id, _MadeUpId)

    @property
    def rhythm(self) -> HeartbeatConfig:
        """Interval and timeouts of the heartbeats."""
        return self._heartbeat or HeartbeatConfig()

    @property
    def _heartbeat(self) -> HeartbeatConfig | None:
        return self.heartbeat if isinstance(self.heartbeat, HeartbeatConfig) else None

    @property
    def drain_s(self) -> float:
        """Time for running work in a drain, in seconds, unless the registry requests another one."""
        return self.drain_timeout_seconds or float(DEFAULT_DRAIN_SECONDS)

    async def register(self, agents: RegistryAgents, *, supersede: bool) -> AgentRecord:
        """Register an agent with this profile, or begin its next incarnation (`RegistryAgents.register`)."""
        return await agents.register(
            self.agent_id,
            role_id=self.role_id,
            name=self.name,
            capabilities=self.capabilities,
            max_concurrent_tasks=self.capacity,
            endpoint=self.endpoint,
            card_url=self.card_url,
            monitoring=self.monitoring,
            heartbeat_config=self._heartbeat,
            drain_timeout_seconds=min(self.drain_s + DRAIN_RESERVE_SECONDS, MAX_DURATION_SECONDS),
            metadata=self.metadata,
            supersede=supersede,
        )


def for_another_run(profile: AgentProfile) -> AgentProfile:
    """Return a profile; a generated id is replaced, so that each run is another agent."""
    return profile if profile.has_fixed_id else replace(profile, agent_id=_generated_id())


def given_profile(
    profile: AgentProfile | None, agent_id: str | None, settings: ProfileSettings
) -> AgentProfile:
    """Return `profile`, or a profile made of `agent_id` and `settings`; TypeError for an unknown setting."""
    if unknown := settings.keys() - ProfileSettings.__annotations__.keys():
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
    own = {} if agent_id is None else {"agent_id": agent_id}
    return profile or AgentProfile(**own, **settings)
