"""Requests of the dashboard: their pages, and their operations of the API.

Pages use the same operations as programs, with the same checks, in one transaction together with the session.
A refusal by the API is shown with the same text.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from lifesign.dashboard import flash, login_sessions
from lifesign.dashboard.error_messages import words_of
from lifesign.dashboard.errors import ForgedForm, NotLoggedIn, UnconfirmedForm, UnknownHost
from lifesign.dashboard.flash import BackLink, way_back
from lifesign.dashboard.login_sessions import FORM_COOKIE, SESSION_COOKIE, Visitor
from lifesign.dashboard.page_links import host_in
from lifesign.dashboard.responses import HEADERS, page
from lifesign.dashboard.safe_redirect import login_path
from lifesign.domain.access.rate_limit import RateLimit, RateLimiter, caller_at
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest
from lifesign.domain.net.public_url import PublicUrl, is_own_host
from lifesign.errors import LifesignError
from lifesign.registry.agents.override_status import MAX_OVERRIDE_SECONDS
from lifesign.registry.app import Registry
from lifesign.registry.errors import BodyTooLarge, BodyTooSlow, TooManyRequests
from lifesign.registry.operation_table import OPERATIONS
from lifesign.registry.policies import Policies
from lifesign.registry.request_handling.body_timeout import MAX_BODY_SECONDS
from lifesign.registry.request_handling.error_statuses import INTERNAL_ERROR_TEXT, STATUS_AND_CODE, headers_of
from lifesign.registry.request_handling.execution import (
    check_length,
    check_permission,
    checked,
    query_of,
)
from lifesign.registry.request_handling.operation import NO_HEADERS, Call, Operation
from lifesign.serving.error_body import REFUSAL_MEMBER
from lifesign.storage.engine.transaction import Transaction

MAX_FORM_BYTES: Final = 16_384
MAX_FIELDS: Final = 32
MINUTE_SECONDS: Final = 60
MAX_MINUTES: Final = MAX_OVERRIDE_SECONDS // MINUTE_SECONDS
MAX_MINUTES_DIGITS: Final = 6
PAGES_PER_VISITOR: Final = RateLimit(20, 200)
"""Requests per client address, as `caller_at` counts them."""
LOGINS_PER_VISITOR: Final = RateLimit(0.2, 30)
"""Logins per client address. Keys cannot be guessed, but each attempt costs time."""
MAX_VISITORS_COUNTED: Final = 10_000
HTTPS_ONLY_SECONDS: Final = 365 * 86_400
"""Time for which browsers use only https, if the public URL is https."""

STATUS_AND_CODE_OF_PAGES: Final[Mapping[type[LifesignError], tuple[int, str]]] = {
    **STATUS_AND_CODE,
    ForgedForm: (403, "forged_form"),
    UnconfirmedForm: (403, "unconfirmed_form"),
    UnknownHost: (421, "unknown_host"),
}
"""Errors of pages: those of the API, and those that only browsers can cause."""

_BY_PATH: Final[Mapping[tuple[str, str], Operation]] = {
    (operation.method, operation.path): operation for operation in OPERATIONS
}
_log = logging.getLogger("lifesign.dashboard")

T = TypeVar("T")
Query = TypeVar("Query", bound=BaseModel)
Answer = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One visitor's request, within one transaction."""

    transaction: Transaction
    visitor: Visitor
    policies: Policies

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, object] | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        **named: str,
    ) -> Any:
        """Call an operation of the API as the visitor, and return its answer.

        `named` contains the parameters of its path. Raise its errors, and NotAllowed as over HTTP.
        """
        operation = _BY_PATH[method, path]
        check_permission(self.visitor.principal, operation, named)
        call = Call(
            caller=self.visitor.principal,
            path=named,
            body=None if operation.body is None else checked(operation.body, body or {}),
            query=None if operation.query is None else checked(operation.query, query or {}),
            headers=headers,
            digest=self.visitor.digest,
            policies=self.policies,
        )
        reply = operation.function(self.transaction, call)
        if isinstance(reply, LifesignError):
            raise reply
        return reply.content


class PageHandler:
    """Answers requests of one server process for pages: sessions, forms, rate limits and errors."""

    def __init__(self, registry: Registry) -> None:
        self.database = registry.dispatcher.database
        self.is_open = registry.settings.open_dashboard
        self._policies = registry.settings.policies
        public_url = registry.settings.public_url
        self._public = None if public_url is None else PublicUrl.read(public_url)
        self._names = _names(self._public)
        self.is_https = self._public is not None and self._public.is_https
        self._pages = RateLimiter(PAGES_PER_VISITOR, MAX_VISITORS_COUNTED)
        self._logins = RateLimiter(LOGINS_PER_VISITOR, MAX_VISITORS_COUNTED)

    def shown(
        self, template: str, function: Callable[[RequestContext, Request], Mapping[str, Any]]
    ) -> Answer:
        """Return a handler that answers with a page: the template shows the result of `function`."""

        async def answer(request: Request) -> Response:
            async def show() -> Response:
                self.count(request)
                visitor, shown = await self.context(request, lambda context: function(context, request))
                return self.page(request, template, visitor, **shown)

            return await self.guarded(request, show)

        return answer

    def page(self, request: Request, template: str, visitor: Visitor, **shown: object) -> Response:
        """Return a page for a visitor."""
        sent = login_sessions.cookie_in(request, self._cookie(request, flash.COOKIE))
        done = flash.done_just_now(request, sent, self.token_in(request, SESSION_COOKIE))
        is_session_ended = not visitor.is_logged_in and self.has_expired_session(request)
        common = {
            "visitor": visitor,
            "path": request.url.path,
            "login_url": login_path(request),
            "is_session_ended": is_session_ended,
            "done": done,
            "own_hosts": {host_in(request.headers.get("host", "")), *self._names},
        }
        answer = page(template, {**common, **shown})
        if done:
            self.set_cookie(answer, request, flash.COOKIE, "", 0)
        if is_session_ended:
            self.set_cookie(answer, request, SESSION_COOKIE, "", 0)
        return answer

    def in_context(self, transaction: Transaction, visitor: Visitor) -> RequestContext:
        """Return the context of a visitor's request in this transaction."""
        return RequestContext(transaction, visitor, self._policies)

    async def context(self, request: Request, function: Callable[[RequestContext], T]) -> tuple[Visitor, T]:
        """Run a function for the visitor of a request in a transaction; return the visitor and the result.

        Raises NotLoggedIn if a login is required.
        """
        token = self.token_in(request, SESSION_COOKIE)

        def read(transaction: Transaction) -> tuple[Visitor, T]:
            visitor = login_sessions.visitor_of(transaction, token, is_open=self.is_open)
            return visitor, function(self.in_context(transaction, visitor))

        return await self.database.read(read)

    def done(self, function: Callable[[RequestContext, Request, Mapping[str, str]], str]) -> Answer:
        """Return a handler that answers a form: `function` executes it and returns the code of its result.

        The page has a text for each code; an empty code has none.
        """

        async def answer(request: Request) -> Response:
            async def act() -> Response:
                self.count(request)
                form = await self.form(request)
                token = self.check_form(request, form)

                def write(transaction: Transaction) -> str:
                    visitor = login_sessions.visitor_of(transaction, token, is_open=False)
                    login_sessions.check_sender(visitor, token, form)
                    return function(self.in_context(transaction, visitor), request, form)

                done, where = await self.database.write(write), flash.page_of(request).where
                answer = RedirectResponse(where, 303, HEADERS)
                if done:
                    error_page = flash.sealed(done, where, token)
                    self.set_cookie(answer, request, flash.COOKIE, error_page, flash.COOKIE_SECONDS)
                return answer

            return await self.guarded(request, act)

        return answer

    def set_cookie(self, answer: Response, request: Request, name: str, value: str, seconds: int) -> None:
        """Give a browser a cookie, as `login_sessions.set_cookie` does."""
        login_sessions.set_cookie(answer, name, value, seconds, is_https=self._is_asked_by_https(request))

    def token_in(self, request: Request, name: str) -> str:
        """Return the token in this dashboard's cookie of a request; empty if it has none."""
        return login_sessions.token_in(request, self._cookie(request, name))

    def _cookie(self, request: Request, name: str) -> str:
        return login_sessions.cookie_name(name, is_https=self._is_asked_by_https(request))

    def _is_asked_by_https(self, request: Request) -> bool:
        # A proxy before us that has TLS may ask by plain http.
        return self.is_https or request.url.scheme == "https"

    def login_token(self, request: Request) -> str:
        """Return the base of the login form's token: the browser's cookie, or a new one."""
        return self.token_in(request, FORM_COOKIE) or login_sessions.new_token()

    async def form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form, the last of repeated ones, without empty ones."""
        check_length(request.headers, MAX_FORM_BYTES)
        body = bytearray()
        try:
            async with asyncio.timeout(MAX_BODY_SECONDS):
                async for part in request.stream():
                    body += part
                    if len(body) > MAX_FORM_BYTES:
                        raise BodyTooLarge(MAX_FORM_BYTES)
        except TimeoutError:
            raise BodyTooSlow(MAX_BODY_SECONDS) from None
        try:
            return dict(parse_qsl(body.decode(), max_num_fields=MAX_FIELDS))
        except ValueError:
            expected = f"expected a form of at most {MAX_FIELDS} fields in UTF-8"
            raise InvalidRequest([Finding("invalid_form", "", expected)]) from None

    def check_form(self, request: Request, form: Mapping[str, str]) -> str:
        """Return the token of the session in which a form was sent.

        ForgedForm unless it comes from a page of ours; NotLoggedIn if the browser has no session any more.
        """
        self.check_origin(request)
        token = self.token_in(request, SESSION_COOKIE)
        if not token:
            raise NotLoggedIn
        login_sessions.check_form_token(form.get("token", ""), token)
        return token

    def check_origin(self, request: Request) -> None:
        """Raise ForgedForm if a browser reports another origin of a form."""
        login_sessions.check_origin(request, "" if self._public is None else self._public.origin)

    def has_expired_session(self, request: Request) -> bool:
        """Return whether a visitor who is not logged in had a session, and the answer is shown as a page.

        This is shown once: the answer removes the cookie.
        """
        is_seen = request.headers.get("sec-fetch-mode", "navigate") == "navigate"
        return is_seen and bool(self.token_in(request, SESSION_COOKIE))

    def _check_host(self, request: Request) -> None:
        """Raise UnknownHost for a host name that another site may have pointed to this server.

        Without a public URL this is checked only where everyone may read: otherwise a session is needed, and
        browsers keep its cookie for the name under which it began.
        """
        host = request.headers.get("host", "")
        if (self._public is not None or self.is_open) and not is_own_host(host, self._names):
            raise UnknownHost(host)

    def count(self, request: Request, *, is_login: bool = False) -> None:
        """Count a request of an address; TooManyRequests above the limit."""
        limiter = self._logins if is_login else self._pages
        wait_s = limiter.wait_s(caller_of(request), time.monotonic())
        if wait_s > 0:
            raise TooManyRequests(wait_s)

    async def guarded(
        self, request: Request, answer: Callable[[], Awaitable[Response]], *, is_public: bool = False
    ) -> Response:
        """Return the answer, or a page that describes the error.

        A page that `is_public` may be read by everyone, under any name of the server.
        """
        return self._over_https(await self._respond(request, answer, is_public=is_public))

    def error_page(
        self, request: Request, status: int, why: str, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Return a page that describes an error."""
        answer = self._error_page(request, status, why)
        answer.headers.update(headers or {})
        return self._over_https(answer)

    def _over_https(self, answer: Response) -> Response:
        if self.is_https:
            answer.headers["Strict-Transport-Security"] = f"max-age={HTTPS_ONLY_SECONDS}"
        return answer

    async def _respond(
        self, request: Request, answer: Callable[[], Awaitable[Response]], *, is_public: bool
    ) -> Response:
        try:
            if not is_public:
                self._check_host(request)
            return await answer()
        except NotLoggedIn:
            return RedirectResponse(login_path(request), 303, HEADERS)
        except ClientDisconnect:
            return Response(status_code=499)
        except LifesignError as error:
            return self.refusal(request, error)
        except Exception:  # noqa: BLE001 - one page must not end the server
            _log.exception("%s %s failed", request.method, request.url.path)
            return self._error_page(request, 500, INTERNAL_ERROR_TEXT)

    def refusal(self, request: Request, error: LifesignError) -> Response:
        """Return a page that describes an error."""
        known = STATUS_AND_CODE_OF_PAGES.get(type(error))
        if known is None:
            _log.error("an internal error in a page: %s", error, exc_info=error)
            return self._error_page(request, 500, INTERNAL_ERROR_TEXT)
        note_refusal(request, error)
        words = words_of(error, is_form=request.method == "POST")
        answer = self._error_page(request, known[0], words, way_back(request))
        answer.headers.update(headers_of(error))
        return answer

    def _error_page(self, request: Request, status: int, why: str, back: BackLink | None = None) -> Response:
        shown = {
            "path": request.url.path,
            "why": why,
            "status": status,
            "phrase": HTTPStatus(status).phrase,
            "visitor": None,
            "back": back,
        }
        return page("refusal.html", shown, status)


def note_refusal(request: Request, error: LifesignError) -> None:
    """Record the reason of a refusal for the access log: see `error_body.RefusalResponse`."""
    request.scope[REFUSAL_MEMBER] = STATUS_AND_CODE_OF_PAGES[type(error)][1]


def query_in(request: Request, model: type[Query]) -> Query:
    """Return a page's query without empty fields. Raises InvalidRequest.

    Unknown members are ignored: links may carry additional ones (`utm_source`).
    """
    given = {name: value for name, value in query_of(request).items() if value != ""}
    for name in model.model_fields:
        if isinstance(given.get(name), list):
            raise InvalidRequest([Finding("repeated", f"/{name}", "is repeated")])
    query = checked(model, given)
    assert isinstance(query, model)  # noqa: S101 - just read as one
    return query


def seconds_in(form: Mapping[str, str]) -> float:
    """Return the duration that a form requests; InvalidRequest unless it is a number of minutes."""
    sent = form.get("minutes", "")
    is_number = sent.isascii() and sent.isdecimal() and len(sent) <= MAX_MINUTES_DIGITS
    if not (is_number and 1 <= int(sent) <= MAX_MINUTES):
        expected = f"expected a whole number from 1 to {MAX_MINUTES:,}, which is {MAX_MINUTES // 1_440} days"
        raise InvalidRequest([Finding("invalid_minutes", "/minutes", expected)])
    return float(sent) * MINUTE_SECONDS


def check_sure(form: Mapping[str, str]) -> None:
    """Raise InvalidRequest unless the form confirms the action, which cannot be undone."""
    if form.get("sure") != "yes":
        raise InvalidRequest([Finding("not_sure", "", 'tick "I am sure" first')])


def _names(public: PublicUrl | None) -> frozenset[str]:
    """Return the host names of pages: the public one, else those of the machine."""
    if public is not None:
        return frozenset({public.host})
    own = socket.gethostname().lower()
    return frozenset({own, f"{own}.local"})


def caller_of(request: Request) -> str:
    """Return the name under which a request counts for rate limits."""
    return "" if request.client is None else caller_at(request.client.host)
