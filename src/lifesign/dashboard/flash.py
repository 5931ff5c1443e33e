"""Page of a form, and the message about its result.

After a form the visitor is redirected to its page, with a cookie that contains the result; the page shows it
and removes the cookie. A reloaded or bookmarked page, or a link from elsewhere, never shows the result of an
earlier action.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType
from typing import Final
from urllib.parse import quote, unquote, urlencode

from starlette.requests import Request

COOKIE: Final = "lifesign_done"
COOKIE_SECONDS: Final = 60
"""Lifetime of the cookie: time for the browser to load the next page."""
MAX_COOKIE_CHARACTERS: Final = 128


@dataclass(frozen=True, slots=True)
class BackLink:
    """A page to which the visitor can return, and its name."""

    where: str
    name: str


_LISTS: Final[Mapping[str, str]] = MappingProxyType({
    "/agents": "all agents", "/events": "all events", "/targets": "all targets", "/tasks": "all tasks",
})  # fmt: skip


def page_of(request: Request) -> BackLink:
    """Return the page that contains a form, from the URL to which the form is sent."""
    match request.path_params:
        case {"agent_id": agent_id}:
            return BackLink(f"/agents/{quote(agent_id, safe='')}", str(agent_id))
        case {"target_id": target_id}:
            return BackLink(f"/targets/{quote(target_id, safe='')}", "the target")
        case {"task_id": task_id}:
            return BackLink(f"/tasks/{quote(task_id, safe='')}", "the task")
        case {"role_id": role_id}:
            return BackLink("/agents?" + urlencode({"pool": role_id}), f"pool {role_id}")
    return BackLink("/", "the overview")


def way_back(request: Request) -> BackLink | None:
    """Return the page to which an error page links; None: the overview."""
    if request.method == "POST":
        way = page_of(request)
        return None if way.where == "/" else way
    if not request.url.query:
        return None
    path = request.url.path
    return BackLink(quote(path), _LISTS.get(path, "the page without a query"))


def sealed(done: str, where: str, token: str) -> str:
    """Return the value of the cookie with a form's result, valid for one session and one page only."""
    return f"{done}.{_seal(done, where, token)}"


def done_just_now(request: Request, text: str, token: str) -> str:
    """Return the result of a form that was just sent, if it is for this page and session; else empty.

    `text` is the cookie of the request.
    """
    done, _, seal = text.partition(".")
    if not (token and done and len(text) <= MAX_COOKIE_CHARACTERS):
        return ""
    query = request.scope["query_string"].decode("latin-1")
    where = request.scope["path"] + (f"?{query}" if query else "")
    return done if hmac.compare_digest(seal.encode(), _seal(done, where, token).encode()) else ""


def _seal(done: str, where: str, token: str) -> str:
    return hmac.new(token.encode(), f"done {done} {unquote(where)}".encode(), sha256).hexdigest()
