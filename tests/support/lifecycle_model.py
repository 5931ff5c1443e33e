"""A model of the registry: the rules once more, in their simplest form, for agents that send heartbeats.

Written from RFC-0016 and the protocol's decisions, not from `lifecycle`, `verdict` or `lease`: it finds
every difference except an error that both make. Each function returns the HTTP status that the registry
has to answer. Times are whole or half seconds, so that sums are exact.
"""

from dataclasses import dataclass, field

ALIVE = ("active", "unhealthy", "draining")
WORKING = ("active", "unhealthy")
DRAIN_SECONDS = 120.0
SLEEPY_SWEEP_SECONDS = 1.5
"""A longer time between two sweeps is our own downtime: three periods of 0.5 s."""
MAX_CLOCK_DIFFERENCE_SECONDS = 5.0
"""After a longer time without a sweep, only the next one knows which leases have ended."""
MAX_COMMANDS = 16


@dataclass
class Command:
    """A drain that waits for an agent."""

    timeout_s: float | None
    expires_at_s: float


@dataclass
class Agent:
    """One agent in its latest life."""

    agent_id: str
    key: str
    last_beat_s: float
    status: str = "active"
    reason: str = "registered"
    incarnation: int = 1
    version: int = 1
    name: str | None = None
    interval_s: float = 30.0
    unhealthy_after_s: float = 90.0
    dead_after_s: float = 300.0
    extended_s: tuple[float, float] | None = None
    """Thresholds for unhealthy and dead that count instead until the next heartbeat."""
    drain_until_s: float | None = None
    maintenance_until_s: float | None = None
    override: tuple[str, float] | None = None
    commands: list[Command] = field(default_factory=list)

    @property
    def etag(self) -> str:
        if self.incarnation == 1:
            return f'"{self.version}"'
        return f'"{self.incarnation}.{self.version}"'


@dataclass
class Lease:
    """The last lease of a resource."""

    resource: str
    lease_id: str
    holder: str
    token: int
    expires_at_s: float
    end: str | None = None


class Model:
    """Agents, leases and the time, as they should be."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self.agents: dict[str, Agent] = {}
        self.leases: dict[str, Lease] = {}
        self.old_leases: list[Lease] = []
        self.versions: dict[str, int] = {}
        """Versions of the states that leases guard."""
        self._swept_at_s: float | None = None
        self._downtimes: list[tuple[float, float]] = []

    # Time

    def advance(self, seconds: float) -> None:
        self.now_s += seconds

    def sweep(self, *, others_swept: bool) -> None:
        """Sweep; a long gap is excused silence, unless others swept meanwhile."""
        swept_at_s = self.now_s if others_swept or self._swept_at_s is None else self._swept_at_s
        if self.now_s - swept_at_s > SLEEPY_SWEEP_SECONDS:
            self._downtimes.append((swept_at_s, self.now_s))
            for agent in self.agents.values():
                if agent.drain_until_s is not None and agent.drain_until_s > swept_at_s:
                    agent.drain_until_s += self.now_s - swept_at_s
        self._swept_at_s = self.now_s
        for lease in self.leases.values():
            if lease.end is None and lease.expires_at_s <= self.now_s:
                lease.end = "expired"
        for agent in self.agents.values():
            self._judge(agent, may_fall=True)
            agent.commands = [command for command in agent.commands if command.expires_at_s > self.now_s]

    def silence_s(self, agent: Agent) -> float:
        excluded_s = sum(
            max(0.0, end_s - max(begin_s, agent.last_beat_s)) for begin_s, end_s in self._downtimes
        )
        return self.now_s - agent.last_beat_s - excluded_s

    def deadlines_s(self) -> list[float]:
        """Return the moments at which time alone changes something."""
        moments_s = [lease.expires_at_s for lease in self.held().values()]
        for agent in self.agents.values():
            if agent.drain_until_s is not None:
                moments_s.append(agent.drain_until_s)
            elif agent.status in WORKING:
                limit_s = self._limits_s(agent)[0 if agent.status == "active" else 1]
                moments_s.append(self.now_s + limit_s - self.silence_s(agent))
        return sorted({at_s for at_s in moments_s if at_s > self.now_s})

    # Agents

    def register(self, agent_id: str, key: str, *, supersede: bool) -> int:
        agent = self.agents.get(agent_id)
        if agent is None:
            self.agents[agent_id] = Agent(agent_id, key, self.now_s)
            return 201
        if agent.status in ALIVE:
            if not supersede:
                return 409
            self._move(agent, "deregistered", "superseded")
        new = Agent(
            agent_id,
            agent.key,
            self.now_s,
            reason="re_registered",
            incarnation=agent.incarnation + 1,
            maintenance_until_s=agent.maintenance_until_s if self._is_maintained(agent) else None,
            override=agent.override if self._is_overridden(agent) else None,
        )
        self.agents[agent_id] = new
        self._judge(new, may_fall=False)
        return 201

    def send_heartbeat(self, agent: Agent, message: str, incarnation: int | None) -> int:
        if agent.status not in ALIVE or incarnation not in {None, agent.incarnation}:
            return 410
        agent.last_beat_s = self.now_s
        agent.extended_s = None
        if agent.status != "draining":
            self._judge(agent, may_fall=False)
            if message == "draining":
                timeouts_s = (command.timeout_s for command in self.pending(agent) if command.timeout_s)
                self._drain(agent, next(timeouts_s, DRAIN_SECONDS))
        return 200

    def pending(self, agent: Agent) -> list[Command]:
        """Return the commands in the reply to a heartbeat."""
        if agent.status not in WORKING:
            return []
        return [command for command in agent.commands if command.expires_at_s > self.now_s]

    def drain(self, agent: Agent, if_match: str | None, timeout_s: float | None) -> int:
        if refused := self._unmatched(agent, if_match):
            return refused
        if agent.status not in WORKING:
            return 409
        self._drain(agent, timeout_s or DRAIN_SECONDS)
        return 200

    def deregister(self, agent: Agent, if_match: str | None) -> int:
        """Deregister as DELETE does, which needs no If-Match."""
        if if_match is not None and if_match != agent.etag:
            return 412
        if agent.status not in ALIVE:
            return 409
        self._move(agent, "deregistered", "deregistered")
        return 204

    def update(self, agent: Agent, if_match: str | None, **changed: object) -> int:
        if refused := self._unmatched(agent, if_match):
            return refused
        if agent.status not in ALIVE:
            return 410
        if any(getattr(agent, name) != value for name, value in changed.items()):
            in_force_s, silence_s = self._limits_s(agent), self.silence_s(agent)
            for name, value in changed.items():
                setattr(agent, name, value)
            agent.version += 1
            # A shorter threshold counts from the change on.
            agent.extended_s = (
                max(agent.unhealthy_after_s, min(in_force_s[0], silence_s + agent.unhealthy_after_s)),
                max(agent.dead_after_s, min(in_force_s[1], silence_s + agent.dead_after_s)),
            )
        return 200

    def command(self, agent: Agent, timeout_s: float | None, expires_in_s: float) -> int:
        if agent.status not in ALIVE:
            return 410
        if len(agent.commands) >= MAX_COMMANDS:
            return 409
        agent.commands.append(Command(timeout_s, self.now_s + expires_in_s))
        return 201

    # Operators

    def maintain(self, agent: Agent, seconds: float | None) -> int:
        """None ends it, also of one that is gone."""
        if agent.status not in ALIVE and seconds is not None:
            return 410
        if seconds is None and not self._is_maintained(agent):
            return 200
        until_s = None if seconds is None else self.now_s + seconds
        if until_s != agent.maintenance_until_s:
            agent.maintenance_until_s = until_s
            self._judge(agent, may_fall=False)
        return 200

    def override(self, agent: Agent, status: str, seconds: float) -> int:
        if agent.status not in ALIVE:
            return 410
        if agent.status not in WORKING:
            return 409
        agent.override = (status, self.now_s + seconds)
        self._judge(agent, may_fall=False)
        return 200

    def end_override(self, agent: Agent) -> int:
        if agent.override is not None:
            # An expired one is kept until the agent registers again: each withdrawal assesses the agent.
            if self._is_overridden(agent):
                agent.override = None
            self._judge(agent, may_fall=False)
        return 200

    # Leases

    def held(self) -> dict[str, Lease]:
        return {name: lease for name, lease in self.leases.items() if self._is_running(lease)}

    def acquire(self, agent: Agent, resource: str) -> int:
        """Return the status of a request; a grant follows by `granted`."""
        if self._is_uncertain(self.leases.get(resource)):
            return 503
        if agent.status == "draining":
            return 409
        if agent.status not in ALIVE:
            return 410
        return 409 if resource in self.held() else 201

    def granted(self, lease: Lease) -> None:
        before = self.leases.get(lease.resource)
        if before is not None:
            self.old_leases.append(before)
        assert lease.token > (0 if before is None else before.token), (lease, before)
        self.leases[lease.resource] = lease

    def renew(self, agent: Agent, lease: Lease, token: int, ttl_s: float) -> int:
        if agent.status not in ALIVE:
            return 410
        if lease.holder != agent.agent_id:
            return 404
        current = self.leases[lease.resource]
        if self._is_uncertain(current):
            return 503
        if current.lease_id != lease.lease_id:
            return 412
        if refused := self._unfenced(agent, current, token):
            return refused
        current.expires_at_s = self.now_s + ttl_s
        return 200

    def release(self, agent: Agent | None, lease: Lease) -> int:
        """Release by an agent, or by an operator (None)."""
        is_own = agent is not None and lease.holder == agent.agent_id
        if agent is not None and not is_own:
            return 404
        current = self.leases[lease.resource]
        if current.lease_id != lease.lease_id and not is_own:
            # Only its holder's id is recognized once the resource was granted again.
            return 404
        if self._is_uncertain(current):
            return 503
        if current.lease_id != lease.lease_id:
            return 412
        end = "released" if is_own else "revoked"
        if self._is_running(current):
            current.end = end
            return 204
        return 204 if current.end == end else 412

    def write(self, agent: Agent, resource: str, token: int) -> int:
        lease = self.leases.get(resource)
        if lease is None:
            return 412
        refused = self._unfenced(agent, lease, token)
        if not refused:
            self.versions[resource] = self.versions.get(resource, 0) + 1
        return refused or 200

    # The rules behind

    def _is_maintained(self, agent: Agent) -> bool:
        return agent.maintenance_until_s is not None and self.now_s < agent.maintenance_until_s

    def _is_overridden(self, agent: Agent) -> bool:
        return agent.override is not None and self.now_s < agent.override[1]

    def _judge(self, agent: Agent, *, may_fall: bool) -> None:
        while (step := self._next(agent, may_fall=may_fall)) is not None:
            self._move(agent, *step)

    def _next(self, agent: Agent, *, may_fall: bool) -> tuple[str, str] | None:
        """Return where an agent goes next, and why; None: it stays."""
        match agent.status:
            case "draining":
                return self._end_of_drain(agent)
            case "active" | "unhealthy" if agent.override is not None and self._is_overridden(agent):
                declared = agent.override[0]
                return None if agent.status == declared else (declared, "operator_override")
            case "active" | "unhealthy":
                return (self._fall(agent) if may_fall else None) or self._recovery(agent)
        return None

    def _end_of_drain(self, agent: Agent) -> tuple[str, str] | None:
        if not self._holds(agent):
            return "deregistered", "drain_completed"
        is_over = agent.drain_until_s is not None and self.now_s >= agent.drain_until_s
        return ("dead", "drain_timeout") if is_over else None

    def _limits_s(self, agent: Agent) -> tuple[float, float]:
        """Return the thresholds for unhealthy and dead that count for the present silence."""
        return agent.extended_s or (agent.unhealthy_after_s, agent.dead_after_s)

    def _fall(self, agent: Agent) -> tuple[str, str] | None:
        if self._is_maintained(agent):
            return None
        unhealthy_after_s, dead_after_s = self._limits_s(agent)
        if agent.status == "active":
            is_late, after = self.silence_s(agent) > unhealthy_after_s, "unhealthy"
        else:
            is_late, after = self.silence_s(agent) > dead_after_s, "dead"
        return (after, "heartbeat_timeout") if is_late else None

    def _recovery(self, agent: Agent) -> tuple[str, str] | None:
        if agent.status == "active":
            return None
        if agent.reason == "operator_override":
            return "active", "operator_override"
        is_late = self.silence_s(agent) > self._limits_s(agent)[0]
        return None if is_late else ("active", "heartbeat_resumed")

    def _move(self, agent: Agent, status: str, reason: str) -> None:
        agent.status, agent.reason = status, reason
        agent.version += 1
        if status not in WORKING:
            agent.commands = []
        if status != "draining":
            agent.drain_until_s = None
        if status not in ALIVE:
            for lease in self.leases.values():
                if lease.end is None and lease.holder == agent.agent_id:
                    lease.end = f"agent_{status}" if self._is_running(lease) else "expired"

    def _drain(self, agent: Agent, timeout_s: float) -> None:
        self._move(agent, "draining", "drain_initiated")
        agent.drain_until_s = self.now_s + timeout_s

    def _holds(self, agent: Agent) -> list[Lease]:
        return [lease for lease in self.held().values() if lease.holder == agent.agent_id]

    def _is_running(self, lease: Lease) -> bool:
        return lease.end is None and self.now_s < lease.expires_at_s

    def _is_uncertain(self, lease: Lease | None) -> bool:
        return (
            lease is not None
            and lease.end is None
            and self._swept_at_s is not None
            and self._swept_at_s < lease.expires_at_s <= self.now_s
            and self.now_s - self._swept_at_s > MAX_CLOCK_DIFFERENCE_SECONDS
        )

    def _unmatched(self, agent: Agent, if_match: str | None) -> int:
        if if_match is None:
            return 428
        return 0 if if_match == agent.etag else 412

    def _unfenced(self, agent: Agent, lease: Lease, token: int) -> int:
        is_current = token == lease.token and lease.holder == agent.agent_id
        if is_current and self._is_uncertain(lease):
            return 503
        return 0 if is_current and self._is_running(lease) else 412
