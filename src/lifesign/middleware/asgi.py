"""ASGI middleware that publishes an agent's health."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from lifesign.domain.a2a.announcement import CARD_PATHS, DEFAULT_HEALTH_PATH
from lifesign.domain.health.outcome import Outcome
from lifesign.domain.mcp.answer_outcome import is_mcp
from lifesign.errors import InvalidValue
from lifesign.middleware.body import Message
from lifesign.middleware.endpoint import HealthEndpoint
from lifesign.middleware.exchange import Receive, RequestExchange, Scope, Send, sends_may_raise
from lifesign.middleware.open_requests import OpenRequests
from lifesign.middleware.recorder import QUICK_NS, AgentHealth
from lifesign.middleware.settings import MiddlewareSettings, Moment
from lifesign.middleware.window_storage import RecorderClock

if TYPE_CHECKING:
    from lifesign.middleware.metrics import MetricsPage
    from lifesign.middleware.observer import Noting

# As wide as frameworks need it: each types scope and messages in its own way.
App = Callable[[Any, Any, Any], Awaitable[None]]

_WELL_KNOWN = "/.well-known/"
_DOCUMENT_PATHS = (DEFAULT_HEALTH_PATH, *CARD_PATHS)
# A DELETE only if it ends the session of an MCP client.
_SELDOM_SAMPLED = frozenset({"HEAD", "OPTIONS", "DELETE"})


class AgentHealthMiddleware:
    """Wraps an ASGI app: counts the outcomes of its requests, and serves `/.well-known/agent-health`.

    The app, its messages and its exceptions pass through unchanged; only the answer at a card path gets one
    more header, `Link: <path>; rel="status"` (RFC 8631). Wrap the app as the last step, when its routes
    exist, or pass the class to `add_middleware` of Starlette or FastAPI. Put a compression around the
    middleware: an answer that is already compressed cannot be inspected.

    Settings (InvalidValue for a wrong one, and for an `app` that cannot be called). Those of the recorder,
    which is `health`, are `agent_id`, `window_seconds`, `refresh_seconds`, `baseline_p99_ms`, `counting`,
    `state_dir`, `model_changed_at`, `capabilities_updated_at` and `clock`: see `AgentHealth`. The others:

    path: where the document is served, below the app's root path; "/.well-known/agent-health" by default.
    timeout_seconds: an answer whose first byte takes longer has failed; 30 by default, above 0, up to
        86400. Nothing is cut off.
    include: path patterns (globs whose `*` crosses slashes) of what is counted; None, the default, is
        everything.
    exclude: path patterns of what is not counted, such as "/metrics"; () by default; wins over `include`.
        Both are matched against the path below the app's root path.
    detail: "full" (default), or "coarse" for an agent whose rhythm would reveal facts about a person:
        healthy, unhealthy or unknown, and nothing else (draft 8).
    detail_token: with "coarse", the bearer token that gets the full document: 16 to 1024 visible ASCII
        characters. None, the default: no one gets the full document.
    metrics_path: where the numbers of the document are served for Prometheus, such as "/metrics"; None, the
        default: nowhere. With "coarse", only for clients with `detail_token`. Needs prometheus-client.
    max_inspected_bytes: how long an answer, or one event of a stream, may be to be inspected for failures
        inside HTTP 200: 1048576 (1 MiB) by default, 0 (never) to 16777216. A longer one counts as
        `not_inspected`: in no ratio. If most do, the status is unknown.
    stream_latency: the latency of a `text/event-stream` answer, "first_byte" (default) or
        "last_byte".
    """

    def __init__(
        self,
        app: App,
        *,
        agent_id: str,
        window_seconds: float = 86_400,
        refresh_seconds: float = 60,
        baseline_p99_ms: float | None = None,
        counting: str = "interactions",
        state_dir: str | Path | None = None,
        model_changed_at: Moment = None,
        capabilities_updated_at: Moment = None,
        path: str = DEFAULT_HEALTH_PATH,
        timeout_seconds: float = 30,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        detail: Literal["full", "coarse"] = "full",
        detail_token: str | None = None,
        metrics_path: str | None = None,
        max_inspected_bytes: int = 1_048_576,
        stream_latency: Literal["first_byte", "last_byte"] = "first_byte",
        clock: RecorderClock | None = None,
    ) -> None:
        settings = MiddlewareSettings.checked(
            path=path,
            timeout_seconds=timeout_seconds,
            include=include,
            exclude=exclude,
            detail=detail,
            detail_token=detail_token,
            metrics_path=metrics_path,
            max_inspected_bytes=max_inspected_bytes,
            stream_latency=stream_latency,
        )
        if not callable(app):
            raise InvalidValue("app", repr(app), "an ASGI application, which is callable")
        self.app = app
        self.health = AgentHealth(
            agent_id=agent_id,
            window_seconds=window_seconds,
            refresh_seconds=refresh_seconds,
            baseline_p99_ms=baseline_p99_ms,
            counting=counting,
            state_dir=state_dir,
            model_changed_at=model_changed_at,
            capabilities_updated_at=capabilities_updated_at,
            clock=clock,
        )
        """The recorder, for interactions that do not come over HTTP."""
        self.health.reporter.is_inspecting = settings.max_inspected_bytes > 0
        # The numbers of a full document show each refresh; a coarse one must not reveal it.
        self.health.publisher.is_on_grid = settings.detail == "coarse"
        self._path = settings.path
        self._pages = {settings.path: HealthEndpoint(self.health, settings).answer}
        """Paths that the middleware answers itself."""
        if settings.metrics_path is not None:
            self._pages[settings.metrics_path] = _metrics_page(self.health, settings).answer
        self._own_paths = (*self._pages, *_DOCUMENT_PATHS)
        # Nearly every path lacks it, which this test finds in a third of the time of `endswith`.
        self._own_mark = _WELL_KNOWN if all(_WELL_KNOWN in path for path in self._own_paths) else ""
        self._is_excluded = settings.excludes()
        self._in_flight: set[RequestExchange] = set()
        self.health.reporter.count_overdue = self._count_overdue
        # Members that an exchange looks up several times for each request.
        self.now_ns = self.health.clock.monotonic_ns
        self.count = self.health.count
        self.count_quick_answer = self.health.count_quick_answer
        self.count_inspected_answer = self.health.count_inspected_answer
        self.count_tool_result = self.health.count_tool_result
        self.note_compressed = self.health.note_compressed
        self.log_failure = self.health.log_failure
        self.sends_may_raise: bool | None = None
        """Property of the server, from its first request."""
        self.noting: Noting | None = None
        self.timeout_ns = int(settings.timeout_seconds * 1e9)
        self.quick_ns = min(self.timeout_ns, QUICK_NS)
        self.max_inspected_bytes = settings.max_inspected_bytes
        self.streams_by_first_byte = settings.stream_latency == "first_byte"
        self._open_requests = (
            None if self.health.settings.state_dir is None else OpenRequests(self, self.health)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        app = self.app
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                self.health.open()
            await app(scope, receive, send)
            return
        path = scope["path"]
        if self._own_mark in path and path.endswith(self._own_paths):
            path = path if path in self._pages else _path_below_root(scope)
            if path in self._pages:
                start, body = self._pages[path](scope)
                await send(start)
                await send(body)
                return
            # The others are of an agent mounted in the app: probes of it are no interactions of this one.
            if path in CARD_PATHS or (scope["method"] == "GET" and path.endswith(_DOCUMENT_PATHS)):
                self._count_excluded()
                await app(scope, receive, self._announcing(scope, send) if path in CARD_PATHS else send)
                return
        is_excluded = self._is_excluded
        if (scope["method"] in _SELDOM_SAMPLED and _is_never_sampled(scope)) or (
            is_excluded is not None and is_excluded(_path_below_root(scope))
        ):
            self._count_excluded()
            await app(scope, receive, send)
            return
        if self.sends_may_raise is None:
            self.sends_may_raise = sends_may_raise(scope)
        exchange = RequestExchange()
        observer = self if self._open_requests is None else self._open_requests.resumed(scope)
        exchange.begin(observer, scope, receive, send)
        self._in_flight.add(exchange)
        try:
            await app(scope, exchange.receive, exchange.send)
        except BaseException as error:
            self._in_flight.discard(exchange)
            exchange.end(error)
            raise
        self._in_flight.discard(exchange)
        if not exchange.is_counted:
            exchange.end()

    def note_uncounted(self) -> None:
        """Log the current exception, because of which a request is not counted."""
        self.log_failure("a request could not be counted")

    def _count_overdue(self, now_ns: int) -> None:
        """Count requests that hang: they may never end, and their callers may have left unnoticed."""
        for exchange in list(self._in_flight):
            exchange.count_if_overdue(now_ns)

    def _count_excluded(self) -> None:
        try:
            self.count(Outcome.EXCLUDED, 0, None, self.now_ns())
        except Exception:  # noqa: BLE001 - measuring must never fail what it measures
            self.note_uncounted()

    def _announcing(self, scope: Scope, send: Send) -> Send:
        """Return a `send` that adds the Link to the health document to a card's answer."""
        link = f'<{quote(_root_path(scope) + self._path)}>; rel="status"'.encode()

        def send_announcing(message: Message) -> Awaitable[None]:
            if message.get("type") == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"link", link)]}
            return send(message)

        return send_announcing


def _metrics_page(recorder: AgentHealth, settings: MiddlewareSettings) -> "MetricsPage":
    # Imported late: only users of the metrics install prometheus-client.
    from lifesign.middleware.metrics import MetricsPage  # noqa: PLC0415

    token = settings.detail_token
    return MetricsPage(recorder, None if token is None else token.get_secret_value())


def _is_never_sampled(scope: Scope) -> bool:
    return scope["method"] != "DELETE" or is_mcp("DELETE", scope.get("headers") or ())


def _root_path(scope: Scope) -> str:
    return str(scope.get("root_path", "")).rstrip("/")


def _path_below_root(scope: Scope) -> str:
    """Return the path as the app's own routes know it.

    Servers differ: uvicorn puts the root path in front of `path`, granian and hypercorn do not.
    """
    path: str = scope["path"]
    root = _root_path(scope)
    return path[len(root) :] if root and path.startswith(root + "/") else path
