"""Which pages are there?"""

from collections.abc import Iterable

from starlette.requests import Request
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from agent_health.dashboard import assets, live_feed
from agent_health.dashboard.agents_table import AgentsTable
from agent_health.dashboard.desk import Desk
from agent_health.dashboard.fleet_facts import FleetFacts
from agent_health.dashboard.live_feed import LiveFeed
from agent_health.dashboard.log_in import LogIn
from agent_health.dashboard.overview import Overview
from agent_health.registry.app import Registry

ROOT_PATH = "/"


class Dashboard:
    """The pages of one server process."""

    def __init__(self, registry: Registry) -> None:
        self.desk = Desk(registry)
        self.facts = FleetFacts(registry.database)
        self.live = LiveFeed(self.desk, registry.feed, self.facts)
        self.streams: tuple[str, ...] = (live_feed.PATH,)

    def routes(self) -> Iterable[BaseRoute]:
        """Return all pages; at `/` only where one is wanted."""
        desk, facts = self.desk, self.facts
        log_in = LogIn(desk)
        yield _PageRoute(ROOT_PATH, Overview(desk, facts).answer, methods=["GET"])
        yield Route("/agents", AgentsTable(desk, facts).answer, methods=["GET"])
        yield Route("/login", log_in.show, methods=["GET"])
        yield Route("/login", log_in.log_in, methods=["POST"])
        yield Route("/logout", log_in.log_out, methods=["POST"])
        yield Route(live_feed.PATH, self.live.answer, methods=["GET"])
        yield Route(assets.PATH, assets.serve_asset, methods=["GET"])

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
