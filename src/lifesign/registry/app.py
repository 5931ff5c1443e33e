"""The server's ASGI application and its parts."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lifesign.domain.access.rate_limit import RateLimit, RateLimiter
from lifesign.domain.events.event import EventDraft
from lifesign.domain.net.allowed_addresses import read_networks
from lifesign.middleware import AgentHealthMiddleware
from lifesign.registry.agents.check_ready import READY_AGENT_PATH
from lifesign.registry.agents.heartbeat_endpoint import HEARTBEAT_PATH, HeartbeatEndpoint
from lifesign.registry.database_identity.marker_updates import MarkerTracker
from lifesign.registry.events.archive_events import Archivist
from lifesign.registry.events.deliver_webhooks import WebhookCourier
from lifesign.registry.events.event_feed import EventFeed
from lifesign.registry.events.log_integrity import LogWatch
from lifesign.registry.events.stream_events import STREAM_PATH, EventStreams
from lifesign.registry.history_pruning import DAY_SECONDS, HistoryPruner
from lifesign.registry.leases.lease_endpoint import LEASE_PATH, LEASES_PATH, RENEW_PATH, LeaseEndpoint
from lifesign.registry.log_decisions import DecisionLog
from lifesign.registry.metrics.show_metrics import METRICS_PATH, MetricsEndpoint
from lifesign.registry.openapi.api_documents import OPENAPI_PATH, OpenapiEndpoint
from lifesign.registry.openapi.endpoints import HEALTH_PATH, JSON_TYPE, READY_PATH, ROOT_LINKS, ROOT_PATH
from lifesign.registry.openintent_dialect import dialect_routes
from lifesign.registry.operation_table import OPERATIONS
from lifesign.registry.request_handling.error_statuses import error_response
from lifesign.registry.request_handling.execution import OperationDispatcher
from lifesign.registry.request_handling.heard_agents import HeardAgents
from lifesign.registry.request_handling.operation import Operation
from lifesign.registry.request_handling.unknown_paths import ErrorPages, Pages
from lifesign.registry.request_handling.work_counts import WorkCounts
from lifesign.registry.settings import RegistrySettings
from lifesign.registry.status_changes.lease_expiry import Reaper
from lifesign.registry.sweep import Sweeper
from lifesign.registry.targets.check_opt_outs import OptOutChecker
from lifesign.registry.targets.link_checks import LinkChecker
from lifesign.registry.tasks.claim_endpoint import CLAIM_PATH, ClaimEndpoint
from lifesign.registry.tasks.task_notifier import TaskNotifier
from lifesign.registry.warm_up import warm_up
from lifesign.serving.connection_limits import REFUSES, STOPS
from lifesign.serving.error_body import REFUSAL_MEMBER
from lifesign.serving.garbage_collection import rarely_collected
from lifesign.serving.loop_threads import use_enough_threads
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.database_deadline import DeadlineDatabase
from lifesign.storage.engine.schema_version import check_tables
from lifesign.storage.engine.transaction import Clock, Database
from lifesign.storage.errors import StoreUnavailable

MAX_KEYS_COUNTED = 10_000
"""Maximum of keys with a rate limit counter; beyond it, the least recently used are dropped."""
HOUSEKEEPING_APART_SECONDS = 0.5
"""Delay of housekeeping after the start, and between the starts of two jobs."""


Answer = Callable[[Request], Awaitable[Response]]


class Frontend(Pages, Protocol):
    """The web interface of the server; one per process."""

    @property
    def streams(self) -> Sequence[str]:
        """Paths of streams, which last as long as their client stays."""

    def routes(self) -> Iterable[BaseRoute]:
        """Return the routes of the frontend, which precede all others; `/` only if a page is requested."""

    async def warm_up(self) -> None:
        """Compute in advance what the first visitor would wait for. Raises StoreUnavailable."""

    async def run(self) -> None:
        """Run background work while the server runs."""


MakeFrontend = Callable[["Registry"], Frontend]


class _TaskId(StringConvertor):
    """Any segment except the names of fixed paths below /tasks."""

    regex = rf"(?!{CLAIM_PATH.rpartition('/')[2]}$)[^/]+"


register_url_convertor("task", _TaskId())


class Registry:
    """One server process: its database, its dispatcher of requests, and its sweep."""

    def __init__(
        self,
        settings: RegistrySettings,
        *,
        database: Database | None = None,
        monotonic_s: Clock = time.monotonic,
        counts: WorkCounts | None = None,
        certificate_ends_s: float | None = None,
    ) -> None:
        self.settings = settings
        self.counts = counts or WorkCounts()
        self.database = database or open_database(settings.database)
        self.decisions = DecisionLog(monotonic_s)
        self.database.writes.listener = self._note_committed
        limit = RateLimit(settings.requests_per_second, settings.request_burst)
        networks = read_networks(settings.webhook_networks, "webhook_networks")
        prompt = DeadlineDatabase(self.database, settings.answer_seconds)
        policies = settings.policies
        self.heard = HeardAgents(monotonic_s)
        self.dispatcher = OperationDispatcher(
            prompt,
            RateLimiter(limit, MAX_KEYS_COUNTED),
            monotonic_s,
            networks,
            self.counts,
            policies=policies,
            heard=self.heard,
        )
        self.heartbeats = HeartbeatEndpoint(self.dispatcher)
        self.leases = LeaseEndpoint(self.dispatcher)
        self.feed = EventFeed(self.database)
        self.streams = EventStreams(self.dispatcher, self.feed)
        self.archivist = Archivist(self.database, settings)
        self.courier = WebhookCourier(self.database, self.feed, settings, self.counts)
        self.sweeper = Sweeper(
            self.database,
            settings,
            monotonic_s,
            policy=policies.mass_exit,
            counts=self.counts,
            heard=self.heard,
        )
        self.reaper = Reaper(self.database, settings.sweep_seconds, monotonic_s)
        self.task_news = TaskNotifier(self.feed)
        self.claims = ClaimEndpoint(self.dispatcher, self.task_news)
        self.pruner = HistoryPruner(self.database, settings.task_retention_seconds / DAY_SECONDS)
        self.opt_out_checker = OptOutChecker(self.database, settings)
        self.link_checker = LinkChecker(self.database, settings)
        self.log_watch = LogWatch(self.database, self.counts)
        self.marker = MarkerTracker(self.database, settings, self.counts)
        self.metrics = MetricsEndpoint(
            self.dispatcher, self.database, settings, self.counts, certificate_ends_s
        )

    @property
    def _housekeeping(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """Background work that can wait; all of it at the start would slow down the first requests."""
        return (
            self.archivist.run,
            self.pruner.run,
            self.opt_out_checker.run,
            self.link_checker.run,
            self.log_watch.run,
        )

    def _note_committed(self, appended: Sequence[EventDraft]) -> None:
        self.counts.note_events(appended)
        self.decisions.note_events(appended)

    @asynccontextmanager
    async def running(self, *beside: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
        """Run sweeps and other background work until the block ends.

        Then store pending data and close the database.
        """
        use_enough_threads("registry-loop")
        loops = (
            *beside,
            self.dispatcher.pauses.run(),
            self.sweeper.run(self.claims.stops),
            self.reaper.run(),
            self.feed.run(),
            self.task_news.run(),
            self.courier.run(),
            self.marker.run(),
            *(
                _after(place * HOUSEKEEPING_APART_SECONDS, loop)
                for place, loop in enumerate(self._housekeeping, start=1)
            ),
        )
        running = [asyncio.create_task(loop) for loop in loops]
        try:
            with rarely_collected():
                yield
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self.heartbeats.groups.close()
            await self.leases.groups.close()
            await self.marker.end()
            await self.database.close()


def create_app(registry: Registry, make_face: MakeFrontend | None = None) -> AgentHealthMiddleware:
    """Return the ASGI app; the middleware of lifesign serves its own health document."""
    face = None if make_face is None else make_face(registry)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[dict[str, Any]]:
        beside = () if face is None else (face.run(),)
        async with registry.running(*beside):
            await registry.marker.begin()
            await warm_up(registry.database, None if face is None else face.warm_up)
            yield {STOPS: registry.claims.stops, REFUSES: registry.heard.note_refusal}

    pages, others = [] if face is None else [*face.routes()], [*_routes(registry)]
    refusals = ErrorPages(face, pages, others)
    routed = Starlette(
        routes=[*pages, *others],
        lifespan=lifespan,
        exception_handlers={HTTPException: refusals.no_route, Exception: refusals.fault},
    )

    # A path with a slash too many is not there: a redirect would send key and body a second time.
    routed.router.redirect_slashes = False

    registry.counts.set_paths([*_paths(routed)])

    # No coroutine of its own: each one between server and operation takes a hundredth of a heartbeat's time.
    def app(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return _count_answer(registry, _taker(registry, routed, refusals, scope), scope, receive, send)

    return AgentHealthMiddleware(
        app,
        agent_id=registry.settings.public_url or "lifesign-registry",
        counting="server_faults",
        # Waiting claims get no deadline: a claim may wait longer than any other answer.
        exclude=[
            HEALTH_PATH,
            READY_PATH,
            # 503 is an answer there, about an agent.
            READY_AGENT_PATH.format(agent_id="*"),
            METRICS_PATH,
            STREAM_PATH,
            CLAIM_PATH,
            *(() if face is None else face.streams),
        ],
        # Our status shows whether the fault was ours; the body has no details.
        max_inspected_bytes=0,
    )


async def _after(seconds: float, loop: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(seconds)
    await loop()


async def _count_answer(
    registry: Registry, taker: ASGIApp, scope: Scope, receive: Receive, send: Send
) -> None:
    """Send the answer of a request, and count it."""
    if scope["type"] != "http":
        await taker(scope, receive, send)
        return
    status = 0

    def send_noting(message: Message) -> Awaitable[None]:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        return send(message)

    began_s = time.perf_counter()
    try:
        await taker(scope, receive, send_noting)
    finally:
        # A caller that disconnected before the answer began was not answered.
        if status:
            method, path = scope["method"], _path_taken(registry, taker, scope)
            place = registry.counts.place_of(method, path)
            registry.counts.note_request(place, status, time.perf_counter() - began_s)
            code = scope.get(REFUSAL_MEMBER)
            # A new agent looks for its record before it registers.
            if code is not None and (method, code) != ("GET", "agent_not_found"):
                client = (scope.get("client") or ("",))[0]
                registry.decisions.note_refusal(method, path or "other", status, code, client)


def _path_taken(registry: Registry, taker: ASGIApp, scope: Scope) -> str:
    """Return the path template of a request, with names of parameters; empty without one."""
    if taker is registry.heartbeats:
        return HEARTBEAT_PATH
    if taker is registry.leases:
        return registry.leases.path_of(scope)
    return getattr(scope.get("route"), "path", "")


def _paths(routed: Starlette) -> Iterable[tuple[str, str]]:
    """Yield each method at each path that is served."""
    for route in routed.routes:
        if isinstance(route, Route):
            yield from ((method, route.path) for method in sorted(route.methods or ()))


def _taker(registry: Registry, routed: ASGIApp, refusals: ErrorPages, scope: Scope) -> ASGIApp:
    """Return the app for a request: the most frequent ones are checked before the routes."""
    if scope["type"] != "http":
        return routed
    if "\0" in scope["path"]:
        # Nothing is called so, and PostgreSQL refuses even to look for it.
        return refusals.no_such_path
    if registry.heartbeats.takes(scope):
        return registry.heartbeats
    return registry.leases if registry.leases.takes(scope) else routed


def _routes(registry: Registry) -> Iterable[BaseRoute]:
    # Only for requests with another method: heartbeats and leases do not come this far.
    yield Route(HEARTBEAT_PATH, registry.heartbeats, methods=["POST"])
    yield Route(RENEW_PATH, registry.leases, methods=["POST"])
    yield Route(LEASES_PATH, registry.leases, methods=["POST"])
    yield Route(LEASE_PATH, registry.leases, methods=["DELETE"])
    yield Route(CLAIM_PATH, registry.claims.answer, methods=["POST"])
    yield Route(ROOT_PATH, _signpost, methods=["GET"])
    for path in (HEALTH_PATH, READY_PATH):
        yield Route(path, _healthz(registry), methods=["GET"])
    yield Route(METRICS_PATH, registry.metrics.answer, methods=["GET"])
    yield Route(OPENAPI_PATH, OpenapiEndpoint(OPERATIONS).answer, methods=["GET"])
    yield Route(STREAM_PATH, registry.streams.answer, methods=["GET"])
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    for path, operations in by_path.items():
        yield Route(path, _answer(registry.dispatcher, operations), methods=list(operations))
    if "openintent" in registry.settings.dialects:
        yield from dialect_routes(registry.dispatcher)


def _answer(dispatcher: OperationDispatcher, operations: dict[str, Operation]) -> Answer:
    async def answer(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await dispatcher.answer(operations[method], request)

    return answer


async def _signpost(_request: Request) -> Response:
    """Describe this server, with links."""
    # A browser may be shown a page here.
    headers = {"Cache-Control": "public, max-age=300", "Vary": "Accept"}
    return Response(to_json(dict(ROOT_LINKS)), headers=headers, media_type=JSON_TYPE)


def _healthz(registry: Registry) -> Answer:
    async def answer(_request: Request) -> Response:
        """Report whether this process can serve: its database answers, is complete and accepts changes.

        After changes fail, the check tries a change without an effect: load balancers send no other changes
        to a server that reports to be unhealthy.
        """
        try:
            registry.database.writes.refuse_mismatch()
            await registry.database.check_files()
            await registry.dispatcher.database.read(check_tables)
            if registry.database.writes.failure is not None:
                await registry.dispatcher.database.write(registry_row.try_change)
            if (failure := registry.database.writes.failure) is not None:
                # It fitted into the last free space of the disk; other changes may not.
                raise failure
        except StoreUnavailable as error:
            return error_response(error)
        return PlainTextResponse("ok\n", headers={"Cache-Control": "no-store"})

    return answer
