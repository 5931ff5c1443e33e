"""Kinds of agents: how each answers while it works, once it has died, and while it answers wrongly."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tests.fleet.login import Login

from lifesign import AgentHealth

CARD_PATH: Final = "/.well-known/agent-card.json"
OLD_CARD_PATH: Final = "/.well-known/agent.json"
HEALTH_PATH: Final = "/.well-known/agent-health"
INTERFACE_PATH: Final = "/a2a"
QUEUE_PATH: Final = "/status"
SAMPLES: Final = 40
LATE_S, LIMIT = 1.5, "1s"
"""Delay of a late answer in seconds, below the timeouts; and the limit, above delays of a busy machine."""
_SLOW_RATIO: Final = 0.1
"""Ratio of an interval: how late a slow agent answers."""


@dataclass(frozen=True)
class Request:
    """One HTTP request."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    """By their names in lower case."""
    body: bytes = b""


@dataclass(frozen=True)
class Answer:
    """One HTTP answer."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class AgentState:
    """The state that decides an agent's answers."""

    url: str
    kind: "Kind"
    interval_s: float
    """Real seconds from one probe to the next."""
    login: Login
    """Tokens that agents behind a login accept."""
    is_dead: bool = False
    is_wrong: bool = False
    health: AgentHealth = field(init=False)
    requests: int = 0

    def __post_init__(self) -> None:
        self.health = AgentHealth(agent_id=f"{self.url}{CARD_PATH}", refresh_seconds=1)
        failed = round(self.kind.error_ratio * SAMPLES)
        for number in range(SAMPLES):
            self.health.record("server_fault" if number < failed else "answered", latency_ms=5)


Reply = Callable[[AgentState, Request], Awaitable[Answer | bytes | None]]
"""Returns the answer to a request; bytes are sent as they are, None closes without an answer."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of agent, and the final verdict that the registry must reach."""

    alive: Reply
    dead: Reply | None = None
    """None: its port is closed."""
    error_ratio: float = 0.0
    dies: bool = False
    is_dead_at_start: bool = False
    revives: bool = False
    is_heartbeat: bool = False
    is_undecided: bool = False
    """Whether its status has no label, since it fails by its own design now and then."""
    checks: tuple[Mapping[str, Any], ...] = ()
    """Assertions of the probers about its answers."""
    is_gradual: bool = False
    """Whether a wrong answer makes it degraded instead of unhealthy."""
    sends_message: bool = False
    """Whether probers send it a message."""
    has_login: bool = False
    """Whether its interface requires a token."""
    statuses: frozenset[str] = frozenset({"active"})
    """Possible final statuses."""
    healths: frozenset[str] = frozenset({"unknown"})
    """Possible final health values; dead agents are not asked."""


def as_json(value: Any, status: int = 200, **headers: str) -> Answer:
    """Return a JSON answer."""
    return Answer(status, json.dumps(value).encode(), {"content-type": "application/json", **headers})


_BLOATED: Final = Answer(200, b"[" + b"0," * 2_000_000 + b"0]", {"content-type": "application/json"})
NOT_FOUND: Final = Answer(404, b"not found", {"content-type": "text/plain"})


def card(state: AgentState, version: str = "1.0", **members: Any) -> Answer:
    """Return the agent's card, in the requested generation, with other members."""
    about: dict[str, Any] = {
        "name": state.url,
        "description": "An agent of the fleet",
        "version": "1.0.0",
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [],
        "capabilities": {},
    }
    url = f"{state.url}{INTERFACE_PATH}"
    if version == "1.0":
        about["supportedInterfaces"] = [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]
    else:
        about |= {"url": url, "protocolVersion": "0.3.0", "preferredTransport": "JSONRPC"}
    return as_json(about | members, etag=f'W/"{len(members)}"')


def document(state: AgentState) -> Answer:
    """Return the health document that the real middleware makes."""
    body = state.health.document().to_json()
    return Answer(200, body, {"content-type": "application/json", "cache-control": "max-age=60"})


def serving(
    *,
    card_path: str = CARD_PATH,
    version: str = "1.0",
    interface: Answer | None = None,
    health: Callable[[AgentState], Answer] | None = document,
    delay_ratio: float = 0.0,
) -> Reply:
    """Return the replies of an agent that serves a card, an interface and perhaps a health document."""

    async def reply(state: AgentState, request: Request) -> Answer | bytes | None:
        if delay_ratio:
            await asyncio.sleep(delay_ratio * state.interval_s * _SLOW_RATIO)
        if request.path == card_path:
            return card(state, version)
        if request.path == INTERFACE_PATH:
            return interface or Answer(405, b"", {"allow": "POST"})
        if request.path == HEALTH_PATH and health is not None:
            return health(state)
        return NOT_FOUND

    return reply


def everywhere(answer: Answer | bytes | None) -> Reply:
    """Return the same answer to every request."""

    async def reply(_state: AgentState, _request: Request) -> Answer | bytes | None:
        return answer

    return reply


async def hang(_state: AgentState, _request: Request) -> Answer | bytes | None:
    """Accept the request and never answer."""
    await asyncio.Event().wait()
    return None


async def flap(state: AgentState, request: Request) -> Answer | bytes | None:
    """Fail for one interval of every three."""
    is_down = int(asyncio.get_running_loop().time() / state.interval_s) % 3 == 2
    return Answer(503, b"") if is_down else await PLAIN(state, request)


async def bloat(_state: AgentState, request: Request) -> Answer | bytes | None:
    """Serve documents that are too large to be read; its interface is gone."""
    return NOT_FOUND if request.path == INTERFACE_PATH else _BLOATED


def _stale(state: AgentState) -> Answer:
    then = (datetime.now(UTC) - timedelta(days=2)).isoformat(timespec="milliseconds")
    return as_json({
        "schema_version": "0.1.0", "agent_id": state.url, "timestamp": then, "health": {"status": "healthy"},
    })  # fmt: skip


def _invalid(_state: AgentState) -> Answer:
    return as_json({"schema_version": "0.1.0", "health": {"status": "splendid"}})


def _limited(state: AgentState) -> Answer:
    state.requests += 1
    return as_json({}, 429, **{"retry-after": "1"}) if state.requests % 4 == 0 else document(state)


PLAIN: Final = serving()


async def ask(state: AgentState, request: Request) -> Answer | bytes | None:
    """Answer messages; its interface may require a token."""
    if request.path != INTERFACE_PATH:
        return await PLAIN(state, request)
    if state.kind.has_login and not state.login.accepts(request.headers.get("authorization", "")):
        return Answer(401, b"", {"www-authenticate": 'Bearer error="invalid_token"'})
    if request.method != "POST":
        return Answer(405, b"", {"allow": "POST"})
    text = "I am a teapot" if state.is_wrong else "OK"
    message = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": text}]}
    return as_json({"jsonrpc": "2.0", "id": json.loads(request.body)["id"], "result": {"message": message}})


async def describe(state: AgentState, request: Request) -> Answer | bytes | None:
    """Serve the card of something else while it is wrong."""
    if request.path == CARD_PATH and state.is_wrong:
        return card(state, description="A shop")
    return await PLAIN(state, request)


async def count(state: AgentState, request: Request) -> Answer | bytes | None:
    """Serve its queue at a path."""
    if request.path == QUEUE_PATH:
        return as_json({"queue": {"depth": "none" if state.is_wrong else 3}})
    return await PLAIN(state, request)


async def delay(state: AgentState, request: Request) -> Answer | bytes | None:
    """Answer messages late while it is wrong."""
    if request.method == "POST" and state.is_wrong:
        await asyncio.sleep(LATE_S)
    return await ask(state, request)


_DEAD: Final = frozenset({"dead"})
_PAGE: Final = Answer(200, b"<html>This domain is for sale</html>", {"content-type": "text/html"})

KINDS: Final[Mapping[str, Kind]] = {
    "plain": Kind(alive=PLAIN, healths=frozenset({"healthy"})),
    "a2a03": Kind(alive=serving(version="0.3"), healths=frozenset({"healthy"})),
    "oldpath": Kind(alive=serving(card_path=OLD_CARD_PATH, version="0.3"), healths=frozenset({"healthy"})),
    "degraded": Kind(alive=PLAIN, error_ratio=0.2, healths=frozenset({"degraded"})),
    "failing": Kind(
        alive=PLAIN, error_ratio=0.7, statuses=frozenset({"unhealthy"}), healths=frozenset({"unhealthy"})
    ),
    "nodocument": Kind(alive=serving(health=None)),
    "invalid": Kind(alive=serving(health=_invalid)),
    "stale": Kind(alive=serving(health=_stale)),
    "gated401": Kind(
        alive=serving(interface=Answer(401, b"", {"www-authenticate": "Bearer"})),
        healths=frozenset({"healthy"}),
    ),
    "gated402": Kind(alive=serving(interface=Answer(402, b"")), healths=frozenset({"healthy", "unknown"})),
    "gated403": Kind(alive=serving(interface=Answer(403, b"")), healths=frozenset({"healthy"})),
    "limited": Kind(alive=serving(health=_limited), healths=frozenset({"healthy", "unknown"})),
    "slow": Kind(alive=serving(delay_ratio=0.1), healths=frozenset({"healthy"})),
    "contradicting": Kind(
        alive=serving(interface=Answer(500, b"broken")),
        statuses=frozenset({"unhealthy"}),
        healths=frozenset({"healthy"}),
    ),
    "flapping": Kind(
        alive=flap,
        is_undecided=True,
        statuses=frozenset({"active", "unhealthy"}),
        healths=frozenset({"healthy", "unknown"}),
    ),
    "heartbeat": Kind(alive=PLAIN, is_heartbeat=True),
    "neveralive": Kind(alive=PLAIN, dies=True, is_dead_at_start=True, statuses=_DEAD),
    "closed": Kind(alive=PLAIN, dies=True, statuses=_DEAD),
    "hanging": Kind(alive=PLAIN, dead=hang, dies=True, statuses=_DEAD),
    "erring": Kind(alive=PLAIN, dead=everywhere(Answer(500, b"oops")), dies=True, statuses=_DEAD),
    "parked": Kind(alive=PLAIN, dead=everywhere(_PAGE), dies=True, statuses=_DEAD),
    "gone": Kind(alive=PLAIN, dead=everywhere(NOT_FOUND), dies=True, statuses=_DEAD),
    "resetting": Kind(alive=PLAIN, dead=everywhere(None), dies=True, statuses=_DEAD),
    "garbage": Kind(alive=PLAIN, dead=everywhere(b"SSH-2.0-OpenSSH_9.2\r\n"), dies=True, statuses=_DEAD),
    "oversized": Kind(alive=PLAIN, dead=bloat, dies=True, statuses=_DEAD),
    "revived": Kind(alive=PLAIN, dies=True, revives=True, healths=frozenset({"healthy"})),
    "asked": Kind(alive=ask, sends_message=True, checks=({"of": "message", "text_contains": "OK"},)),
    "described": Kind(alive=describe, checks=({"of": "card", "pointer": "/description", "glob": "*fleet*"},)),
    "counting": Kind(
        alive=count,
        checks=({"of": QUEUE_PATH, "status": 200, "pointer": "/queue/depth", "matches": "^[0-9]{1,3}$"},),
    ),
    "late": Kind(
        alive=delay, sends_message=True, is_gradual=True, checks=({"of": "message", "latency_below": LIMIT},)
    ),
    "gated": Kind(
        alive=ask, sends_message=True, has_login=True, checks=({"of": "message", "text_contains": "OK"},)
    ),
    "silentbeat": Kind(alive=PLAIN, dies=True, is_heartbeat=True, statuses=_DEAD),
}

UNCHECKED: Final = tuple(sorted(name for name, kind in KINDS.items() if not kind.checks))
"""Kinds about whose answers no assertion is made."""
