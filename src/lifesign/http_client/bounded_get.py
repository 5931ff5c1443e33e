"""One GET, POST or DELETE with its redirects: bounded in bytes, hops and time, and safe for any peer.

Every fault of a peer is a `ResultClass` with a reason, never an exception.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from time import perf_counter
from typing import Final, Literal

import aiohttp
from yarl import URL

from lifesign.domain.common.project import project_suffix
from lifesign.domain.credentials.request_scope import CredentialScope
from lifesign.domain.credentials.secret import NO_SECRETS, Scrubber
from lifesign.domain.observation.results import ResultClass
from lifesign.http_client.answer import Answer, classify_status, in_ms, read_head, unread_coding
from lifesign.http_client.bounded_body import read_bounded, read_until
from lifesign.http_client.byte_counter import READ_BYTES
from lifesign.http_client.counted_sessions import counter_of
from lifesign.http_client.failures import (
    FAILURES,
    MAX_HEADER_LINE_BYTES,
    MAX_HEADERS,
    classify_failure,
    too_large,
)
from lifesign.http_client.guarded_sessions import GuardedSessions
from lifesign.http_client.headers import media_type
from lifesign.http_client.redirects import KEEPS_METHOD, REDIRECTS, next_hop

EVENT_STREAM: Final = "text/event-stream"
# It may never end.
_UNREQUESTED_STREAM: Final = (ResultClass.NOT_AN_AGENT, "an event stream, which was not requested")
TOKEN_NOT_SENT: Final = "redirected to a URL to which the token is not sent"  # noqa: S105 - a reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, with its limits of size and time."""

    max_bytes: int
    """The largest body that is read."""
    deadline_s: float
    """When to give up, on the event loop's clock: for all hops and the whole body together."""
    token: str | None = None
    """Sent as Bearer, and never to another origin."""
    token_scope: CredentialScope | None = None
    """URLs that get the token: a redirect with it to another URL is not followed. None: all of its origin."""
    body: bytes | None = None
    """Body of a POST, which follows only redirects that keep its method and origin, and whose answer is read
    at any status.
    """
    is_delete: bool = False
    """Whether it is a DELETE, which follows redirects as a POST does. Without a body, all others are GET
    requests.
    """
    is_head_enough: bool = False
    """Whether no body is read: an event stream may never end."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Besides those that every request has."""
    is_enough: Callable[[bytes], bool] | None = None
    """Takes each piece of an event stream; True ends the reading. Without it, no event stream is read."""
    may_leave_origin: bool = False
    """Whether a redirect may lead to another origin; from http to https of one host it always may."""
    scrubber: Scrubber = NO_SECRETS
    """Removes secrets: a redirect to a URL that contains one is not followed."""

    @property
    def method(self) -> Literal["GET", "POST", "DELETE"]:
        """Method of the request."""
        if self.is_delete:
            return "DELETE"
        return "GET" if self.body is None else "POST"


Get = Callable[[URL, Ask], Awaitable[Answer]]
"""Sends one request and follows its redirects; raises nothing that a peer can cause."""


@cache
def user_agent() -> str:
    """Return the `User-Agent` header of lifesign's requests, except the prober's."""
    try:
        version = metadata.version("lifesign")
    except metadata.PackageNotFoundError:
        version = "0"
    return f"lifesign/{version}{project_suffix()}"


async def bounded_get(sessions: GuardedSessions, url: URL, ask: Ask) -> Answer:
    """Send a request to `url` and follow its redirects; a fault of the peer raises no exception."""
    started_s = perf_counter()
    followed = 0
    while True:
        answer, location = await _ask_once(sessions.session_for(url), url, ask)
        answer = replace(answer, latency_ms=in_ms(perf_counter() - started_s))
        if location is None:
            return answer
        target = next_hop(
            url,
            location,
            followed=followed,
            has_token=ask.token is not None,
            may_leave_origin=ask.may_leave_origin,
            scrubber=ask.scrubber,
        )
        scope = None if ask.token is None else ask.token_scope
        if isinstance(target, URL) and scope is not None and not scope.covers(str(target)):
            target = TOKEN_NOT_SENT
        if isinstance(target, str):
            return replace(answer, result=ResultClass.REDIRECT_REFUSED, reason=target)
        url = target
        followed += 1


async def _ask_once(session: aiohttp.ClientSession, url: URL, ask: Ask) -> tuple[Answer, str | None]:
    """Return the answer to one request, and where it redirects to if it does."""
    headers = {"Accept": "application/json", "User-Agent": user_agent(), **ask.headers}
    if ask.token is not None:
        headers["Authorization"] = f"Bearer {ask.token}"
    try:
        async with (
            asyncio.timeout_at(ask.deadline_s),
            session.request(
                ask.method,
                url,
                data=ask.body,
                headers=headers,
                allow_redirects=False,
                raise_for_status=False,
                # The one deadline counts, not what the session allows to each step.
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=True,
                read_bufsize=READ_BYTES,
                max_line_size=MAX_HEADER_LINE_BYTES,
                max_field_size=MAX_HEADER_LINE_BYTES,
                max_headers=MAX_HEADERS,
            ) as response,
        ):
            result, reason = classify_status(response.status)
            body: bytes | None = b""
            if ask.is_head_enough:
                pass
            elif result is ResultClass.OK and (unread := unread_coding(response)) is not None:
                result, reason = unread
            elif media_type(response.headers) == EVENT_STREAM and ask.is_enough is None:
                if result is ResultClass.OK:
                    result, reason = _UNREQUESTED_STREAM
            elif result is ResultClass.OK or ask.body is not None:
                body = await _read(response, ask)
                if body is None:
                    result, reason = too_large(ask.max_bytes)
            answer = Answer(url=url, result=result, reason=reason, body=body or b"", **read_head(response))
            is_followed = response.status in (REDIRECTS if ask.method == "GET" else KEEPS_METHOD)
            return answer, response.headers.get("Location") if is_followed else None
    except FAILURES as error:
        result, reason = classify_failure(url, error)
        return Answer(url=url, result=result, reason=reason), None


async def _read(response: aiohttp.ClientResponse, ask: Ask) -> bytes | None:
    """Return the body; None if it is too large."""
    counter = counter_of(response)
    if ask.is_enough is None or media_type(response.headers) != EVENT_STREAM:
        return await read_bounded(response, ask.max_bytes, counter)
    body, _ = await read_until(response, ask.max_bytes, counter, ask.is_enough)
    return body
