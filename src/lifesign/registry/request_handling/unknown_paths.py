"""Error responses for requests without a matching operation: JSON for programs, HTML for people.

Programs get the same form as for all other errors. A browser that requests an unknown path gets a page, if
the server has any, with the same status and headers.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from lifesign.registry.request_handling.error_statuses import INTERNAL_ERROR_TEXT
from lifesign.serving.error_body import REFUSAL_MEMBER, problem

if TYPE_CHECKING:
    from starlette.applications import Starlette

OF_PROGRAMS: Final = ("/api/", "/dialects/", "/.well-known/")
"""Paths below which no page is looked for."""
_CODES: Final[Mapping[int, str]] = {404: "not_found", 405: "method_not_allowed"}
_TEXTS: Final[Mapping[int, str]] = {
    404: "There is no page at this address.",
    405: "This address does not accept such a request.",
}
"""Texts of the page for people."""


class Pages(Protocol):
    """Renders pages for people."""

    def error_page(
        self, request: Request, status: int, why: str, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Return a page that describes an error."""


class ErrorPages:
    """Answers requests without a route, and failed ones; one per server process."""

    def __init__(
        self, pages: Pages | None, routes_of_pages: Sequence[BaseRoute], other_routes: Sequence[BaseRoute]
    ) -> None:
        self._pages = pages
        self._routes_of_pages = routes_of_pages
        self._other_routes = other_routes

    async def no_route(self, request: Request, error: Exception) -> Response:
        """Answer a request without a route."""
        if not isinstance(error, HTTPException):  # pragma: no cover - starlette hands over no other
            raise error
        headers = dict(error.headers or {})
        if error.status_code == 405:
            # Several routes may share a path; starlette names the methods of the first.
            headers["Allow"] = ", ".join(sorted(_methods_at(request)))
        return self._error_page(request, error.status_code, error.detail, headers)

    async def fault(self, request: Request, _error: Exception) -> Response:
        """Answer when the server itself fails outside an operation; starlette then logs the error."""
        return self._error_page(request, 500, INTERNAL_ERROR_TEXT)

    async def no_such_path(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 404 at a path that no route can have; an ASGI app."""
        await self._error_page(Request(scope), 404, "Not Found")(scope, receive, send)

    def _error_page(
        self, request: Request, status: int, why: str, headers: Mapping[str, str] | None = None
    ) -> Response:
        code = "internal" if status == 500 else _CODES.get(status, "http_error")
        if self._pages is None or not self._wants_page(request):
            return problem(status, code, why, headers=headers)
        # Used by the access log: see `error_body.RefusalResponse`.
        request.scope[REFUSAL_MEMBER] = code
        return self._pages.error_page(request, status, _TEXTS.get(status, why), headers)

    def _wants_page(self, request: Request) -> bool:
        if "text/html" not in request.headers.get("accept", ""):
            return False
        if _takes(self._routes_of_pages, request.scope):
            return True
        return not (request.url.path.startswith(OF_PROGRAMS) or _takes(self._other_routes, request.scope))


def _takes(routes: Sequence[BaseRoute], scope: Scope) -> bool:
    return any(route.matches(scope)[0] is not Match.NONE for route in routes)


def _methods_at(request: Request) -> set[str]:
    app: Starlette = request.app
    return {
        method
        for route in app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
