"""Routes of the pages."""

import asyncio
from collections.abc import Iterable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from lifesign.dashboard import assets, live_feed
from lifesign.dashboard.fleet_facts import FleetCountCache
from lifesign.dashboard.live_feed import LiveFeed
from lifesign.dashboard.page_handler import PageHandler
from lifesign.dashboard.pages import agent, events, pool_maintenance, targets, tasks
from lifesign.dashboard.pages.agents import AgentsTable
from lifesign.dashboard.pages.census import CensusPage
from lifesign.dashboard.pages.log_in import LogIn
from lifesign.dashboard.pages.overview import Overview, release_suspension
from lifesign.dashboard.pages.public_status import PublicStatus
from lifesign.dashboard.responses import load
from lifesign.registry.app import Registry

ROOT_PATH = "/"
FIRST_TEMPLATES = ("base.html", "marks.html", "login.html", "overview.html", "agents.html")
"""Templates of the first pages; others are loaded at their first use, in 10 to 40 ms."""


class Dashboard:
    """The pages of one server process."""

    def __init__(self, registry: Registry) -> None:
        self.desk = PageHandler(registry)
        self.facts = FleetCountCache(registry.database)
        self.census = CensusPage(self.desk, registry.database)
        self.overview = Overview(self.desk, self.facts, registry.settings.clock_offset_seconds)
        self.live = LiveFeed(self.desk, registry.feed, self.facts, registry.claims.stops)
        self.streams: tuple[str, ...] = (live_feed.PATH,)

    def routes(self) -> Iterable[BaseRoute]:
        """Return the routes of all pages; the route of `/` matches only clients that accept HTML."""
        desk, facts = self.desk, self.facts
        log_in = LogIn(desk)
        yield _PageRoute(ROOT_PATH, self.overview.answer, methods=["GET"])
        yield Route("/agents", AgentsTable(desk, facts).answer, methods=["GET"])
        yield from self._about_agents()
        yield from self._task_routes()
        yield from self._about_targets()
        yield Route("/events", desk.shown("events.html", events.show_events), methods=["GET"])
        yield Route("/census", self.census.answer, methods=["GET"])
        public = PublicStatus(desk)
        yield Route("/status/{agent_id}", public.show, methods=["GET"])
        yield Route("/badge/{agent_id}.svg", public.badge, methods=["GET"])
        yield Route("/monitor/release", desk.done(release_suspension), methods=["POST"])
        yield Route("/login", log_in.show, methods=["GET"])
        yield Route("/login", log_in.log_in, methods=["POST"])
        yield Route("/logout", log_in.log_out, methods=["POST"])
        yield Route(live_feed.PATH, self.live.answer, methods=["GET"])
        yield Route(assets.PATH, assets.serve_asset, methods=["GET"])

    def _about_agents(self) -> Iterable[BaseRoute]:
        desk = self.desk
        yield Route("/agents/{agent_id}", desk.shown("agent.html", agent.show_agent), methods=["GET"])
        functions = {
            "recheck": agent.recheck,
            "drain": agent.drain,
            "command": agent.command,
            "maintenance": agent.begin_maintenance,
            "maintenance/end": agent.end_maintenance,
            "override": agent.declare,
            "override/end": agent.end_override,
        }
        for name, function in functions.items():
            yield Route(f"/agents/{{agent_id}}/{name}", desk.done(function), methods=["POST"])
        pool = "/pools/{role_id}/maintenance"
        yield Route(pool, desk.done(pool_maintenance.begin), methods=["POST"])
        yield Route(f"{pool}/end", desk.done(pool_maintenance.end), methods=["POST"])

    def _task_routes(self) -> Iterable[BaseRoute]:
        desk = self.desk
        yield Route("/tasks", desk.shown("tasks.html", tasks.show_tasks), methods=["GET"])
        yield Route("/tasks/{task_id}", desk.shown("task.html", tasks.show_task), methods=["GET"])
        functions = {"review": tasks.review, "resolve": tasks.resolve, "cancel": tasks.cancel}
        for name, function in functions.items():
            yield Route(f"/tasks/{{task_id}}/{name}", desk.done(function), methods=["POST"])

    def _about_targets(self) -> Iterable[BaseRoute]:
        desk = self.desk
        yield Route("/targets", desk.shown("targets.html", targets.show_targets), methods=["GET"])
        shown = desk.shown("target.html", targets.show_target)
        yield Route("/targets/{target_id}", shown, methods=["GET"])
        yield Route("/targets/{target_id}/recheck", desk.done(targets.recheck), methods=["POST"])

    def error_page(
        self, request: Request, status: int, why: str, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Return a page that describes an error."""
        return self.desk.error_page(request, status, why, headers)

    async def warm_up(self) -> None:
        """Count the fleet, and prepare the first pages of visitors."""
        await asyncio.gather(asyncio.to_thread(load, FIRST_TEMPLATES), self.facts.count())
        await self.overview.read_once()

    async def run(self) -> None:
        """Send events to open pages."""
        await self.live.run()


class _PageRoute(Route):
    """Route for browsers. Programs get the route of the same path that follows it."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match only requests of clients that accept HTML."""
        if scope["type"] != "http" or "text/html" not in Request(scope).headers.get("accept", ""):
            return Match.NONE, {}
        return super().matches(scope)
