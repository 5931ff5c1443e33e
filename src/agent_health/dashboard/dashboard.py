"""Which pages are there?"""

import asyncio
from collections.abc import Iterable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from agent_health.dashboard import (
    agent_page,
    assets,
    events_page,
    live_feed,
    pool_maintenance,
    target_pages,
    task_pages,
)
from agent_health.dashboard.agents_table import AgentsTable
from agent_health.dashboard.census_page import CensusPage
from agent_health.dashboard.desk import Desk
from agent_health.dashboard.fleet_facts import FleetFacts
from agent_health.dashboard.live_feed import LiveFeed
from agent_health.dashboard.log_in import LogIn
from agent_health.dashboard.overview import Overview, release_hold
from agent_health.dashboard.pages import load
from agent_health.dashboard.public_status import PublicStatus
from agent_health.registry.app import Registry

ROOT_PATH = "/"
FIRST_TEMPLATES = ("base.html", "marks.html", "login.html", "overview.html", "agents.html")
"""Of the pages that people come to first; any other is read when it is first wanted, in 10 to 40 ms."""


class Dashboard:
    """The pages of one server process."""

    def __init__(self, registry: Registry) -> None:
        self.desk = Desk(registry)
        self.facts = FleetFacts(registry.database)
        self.census = CensusPage(self.desk, registry.database)
        self.overview = Overview(self.desk, self.facts, registry.settings.clock_offset_seconds)
        self.live = LiveFeed(self.desk, registry.feed, self.facts, registry.claims.stops)
        self.streams: tuple[str, ...] = (live_feed.PATH,)

    def routes(self) -> Iterable[BaseRoute]:
        """Return all pages; at `/` only where one is wanted."""
        desk, facts = self.desk, self.facts
        log_in = LogIn(desk)
        yield _PageRoute(ROOT_PATH, self.overview.answer, methods=["GET"])
        yield Route("/agents", AgentsTable(desk, facts).answer, methods=["GET"])
        yield from self._about_agents()
        yield from self._about_tasks()
        yield from self._about_targets()
        yield Route("/events", desk.shown("events.html", events_page.show_events), methods=["GET"])
        yield Route("/census", self.census.answer, methods=["GET"])
        public = PublicStatus(desk)
        yield Route("/status/{agent_id}", public.show, methods=["GET"])
        yield Route("/badge/{agent_id}.svg", public.badge, methods=["GET"])
        yield Route("/monitor/release", desk.done(release_hold), methods=["POST"])
        yield Route("/login", log_in.show, methods=["GET"])
        yield Route("/login", log_in.log_in, methods=["POST"])
        yield Route("/logout", log_in.log_out, methods=["POST"])
        yield Route(live_feed.PATH, self.live.answer, methods=["GET"])
        yield Route(assets.PATH, assets.serve_asset, methods=["GET"])

    def _about_agents(self) -> Iterable[BaseRoute]:
        desk = self.desk
        yield Route("/agents/{agent_id}", desk.shown("agent.html", agent_page.show_agent), methods=["GET"])
        deeds = {
            "recheck": agent_page.recheck,
            "drain": agent_page.drain,
            "command": agent_page.command,
            "maintenance": agent_page.begin_maintenance,
            "maintenance/end": agent_page.end_maintenance,
            "override": agent_page.declare,
            "override/end": agent_page.take_back,
        }
        for name, deed in deeds.items():
            yield Route(f"/agents/{{agent_id}}/{name}", desk.done(deed), methods=["POST"])
        pool = "/pools/{role_id}/maintenance"
        yield Route(pool, desk.done(pool_maintenance.begin), methods=["POST"])
        yield Route(f"{pool}/end", desk.done(pool_maintenance.end), methods=["POST"])

    def _about_tasks(self) -> Iterable[BaseRoute]:
        desk = self.desk
        yield Route("/tasks", desk.shown("tasks.html", task_pages.show_tasks), methods=["GET"])
        yield Route("/tasks/{task_id}", desk.shown("task.html", task_pages.show_task), methods=["GET"])
        deeds = {"review": task_pages.review, "resolve": task_pages.resolve, "cancel": task_pages.cancel}
        for name, deed in deeds.items():
            yield Route(f"/tasks/{{task_id}}/{name}", desk.done(deed), methods=["POST"])

    def _about_targets(self) -> Iterable[BaseRoute]:
        desk = self.desk
        yield Route("/targets", desk.shown("targets.html", target_pages.show_targets), methods=["GET"])
        shown = desk.shown("target.html", target_pages.show_target)
        yield Route("/targets/{target_id}", shown, methods=["GET"])
        yield Route("/targets/{target_id}/recheck", desk.done(target_pages.recheck), methods=["POST"])

    def told(
        self, request: Request, status: int, why: str, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Return a page that says why there is no other."""
        return self.desk.told(request, status, why, headers)

    async def warm_up(self) -> None:
        """Count the fleet, and have the first pages ready that people see."""
        await asyncio.gather(asyncio.to_thread(load, FIRST_TEMPLATES), self.facts.count())
        await self.overview.read_once()

    async def run(self) -> None:
        """Tell open pages what happens."""
        await self.live.run()


class _PageRoute(Route):
    """Takes who wants a page: browsers. To programs, what stands behind it answers as ever."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match as a route does, for who accepts HTML."""
        if scope["type"] != "http" or "text/html" not in Request(scope).headers.get("accept", ""):
            return Match.NONE, {}
        return super().matches(scope)
