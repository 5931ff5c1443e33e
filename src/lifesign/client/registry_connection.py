"""Requests to a registry: bounded in time and size, and repeated if that is safe.

The caller decides whether a request may be repeated after it was perhaps executed (`Question.may_repeat`).
Any other request is repeated only if there was no connection to send it on.
"""

import asyncio
import math
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from yarl import URL

from lifesign import boot_clock
from lifesign.client.candidate_urls import parse_agent_url
from lifesign.client.environment_variables import URL_VARIABLE
from lifesign.client.registry_errors import (
    InvalidAnswer,
    NotAuthorized,
    RateLimited,
    RegistryError,
    Unavailable,
    Unreachable,
    error_of,
    may_have_been_executed,
)
from lifesign.client.secret_file import FixedKey, KeySource
from lifesign.domain.common.finding import json_pointer
from lifesign.domain.credentials.secret import NO_SECRETS, Scrubber, scrubber_of
from lifesign.domain.files.validation_messages import MAX_SHOWN_CHARACTERS, invalid_setting
from lifesign.domain.targets.target import is_in_the_clear
from lifesign.errors import InvalidValue
from lifesign.http_client.bounded_body import read_bounded, read_piece
from lifesign.http_client.bounded_get import user_agent
from lifesign.http_client.byte_counter import READ_BYTES
from lifesign.http_client.counted_sessions import ByteCountingConnector, counter_of, counting_session
from lifesign.http_client.failures import (
    FAILURES,
    MAX_HEADER_LINE_BYTES,
    MAX_HEADERS,
    ListenerChanged,
    TooManyBytes,
    classify_failure,
)
from lifesign.http_client.headers import media_type, retry_after_seconds
from lifesign.loopback.listeners import IN_THIS_PROCESS

NOT_RUNNING_HINT = (
    "check that a registry runs there (lifesign serve), or give another URL with --registry or "
    f"${URL_VARIABLE}"
)
PLAIN_HTTP_HINT = (
    f"if the registry speaks plain HTTP, write http:// instead of https:// in --registry or ${URL_VARIABLE}"
)
TLS_HINT = f"if the registry speaks HTTPS, write https:// instead of http:// in --registry or ${URL_VARIABLE}"
TIMEOUT_SECONDS = 10.0
MAX_TIMEOUT_SECONDS = 300.0
EARLY_S = 0.01
"""Time by which a timer may end early."""
MAX_TRIES = 5
ATTEMPT_TIMEOUT_RATIO = 0.5
"""Share of the remaining time for one try of a request that may be repeated, unless the registry is slow."""
FIRST_WAIT_S = 0.1
"""Delay before the second attempt; doubled for each further one, of which a random half to all is waited."""
MAX_WAIT_S = 30.0
"""Maximum wait between tries; a registry's Retry-After may exceed it."""
MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_CONNECTIONS = 32
IDLE_SECONDS = 30.0
"""Time without a byte after which a stream is dead. The registry sends a comment every 10 s."""

_NO_TLS_REASONS = frozenset({"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})
"""OpenSSL's reasons, which depend on its version, if a server answers a TLS handshake without TLS."""
_EXPECTED_URL = "the URL of a registry with http:// or https://, without credentials and query"
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request to a registry: method, path, query and body."""

    method: str
    path: str
    """Path below the registry's URL, percent-encoded; see `path_of`."""
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Callable[[], bytes] | None = None
    """JSON; see `body_of`. A function is called for each try."""
    headers: Mapping[str, str] = field(default_factory=dict)
    may_repeat: bool = False
    """Whether the request may be executed twice without harm."""
    waits_s: float = 0.0
    """Additional time, because the registry is asked to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryReply:
    """A successful answer (2xx) of a registry."""

    status: int
    content_type: str
    body: bytes = field(repr=False)
    """May contain a key."""
    sent_at_s: float
    """When the try that was answered began, by `boot_clock`."""
    scrubber: Scrubber = field(default=NO_SECRETS, repr=False)
    """Removes the key of the request from texts that quote the answer."""


def path_of(*segments: str) -> str:
    """Return the path of `/api/v1` with these segments, each percent-encoded.

    InvalidValue if a segment leaves the path.
    """
    for segment in segments:
        if segment in {"", ".", ".."}:
            # Proxies may interpret them as directories.
            raise InvalidValue("id", segment, "a value that is valid in a path")
    return "/".join(("/api/v1", *(quote(segment, safe=":~") for segment in segments)))


def query_of(**members: object) -> dict[str, str]:
    """Return query parameters without those that are None or empty. Several values are joined by commas."""
    return {
        name: ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
        for name, value in members.items()
        if value is not None and value not in ("", (), [])
    }


def build_body(model: type[M], **members: object) -> M:
    """Create a request body from the caller's arguments; InvalidValue names the first invalid one."""
    try:
        return model.model_validate(members)
    except ValidationError as error:
        raise invalid_setting(error, model.__name__.lower(), model=model) from None


def body_of(model: type[BaseModel], **members: object) -> bytes:
    """Return the caller's arguments, validated by the model, as a JSON body without default values."""
    return build_body(model, **members).model_dump_json(exclude_unset=True).encode()


def texts(name: str, given: object) -> list[str]:
    """Return a caller's list of texts; InvalidValue if it is something else, such as a single text.

    A text is a sequence of texts in Python: without this check it would be split into letters.
    """
    if isinstance(given, Collection) and not isinstance(given, str | bytes | bytearray | Mapping):
        many = list(given)
        if all(isinstance(one, str) for one in many):
            return many
    shown = given[:MAX_SHOWN_CHARACTERS] if isinstance(given, str) else given
    is_plain = isinstance(given, str | int | float)
    raise InvalidValue(name, shown if is_plain else None, "a list or a tuple of texts")


def members_of(given: object) -> object:
    """Return a caller's mapping as a dict for JSON. Any other value is unchanged, for the model to refuse."""
    return dict(given) if isinstance(given, Mapping) else given


def incarnation_header(incarnation: int | None) -> dict[str, str]:
    """Return the request header with the agent's incarnation; empty if that is None."""
    return {} if incarnation is None else {"X-Agent-Incarnation": str(incarnation)}


class RegistryConnection:
    """Sends requests to one registry, and the key to no other server."""

    def __init__(
        self,
        url: str,
        *,
        key: str | KeySource | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        session: aiohttp.ClientSession | None = None,
        allow_plain_http: bool = False,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.url = parse_registry_url(url, allow_plain_http=allow_plain_http)
        if not (math.isfinite(timeout_seconds) and 0 < timeout_seconds <= MAX_TIMEOUT_SECONDS):
            expected = f"seconds above 0, at most {MAX_TIMEOUT_SECONDS:g}"
            raise InvalidValue("timeout_seconds", timeout_seconds, expected)
        self.timeout_seconds = timeout_seconds
        self.sleep = sleep
        self._keys = FixedKey(key) if key is None or isinstance(key, str) else key
        self._sent_key: str | None = None
        self._scrubber = NO_SECRETS
        self._given_session = session
        self._own_session: aiohttp.ClientSession | None = None
        self._chance = chance
        self._is_slow = False
        """Whether an attempt timed out, and no answer was fast since: then an attempt has all of the time.

        Otherwise no answer would arrive if each takes longer than an attempt's share.
        """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    async def close(self) -> None:
        """Close the connections, unless they belong to a session that the caller passed in."""
        session, self._own_session = self._own_session, None
        if session is not None:
            await session.close()

    async def ask_for(self, model: type[M], question: Question) -> M:
        """Send a request and return the answer as this model. Members that the model lacks are ignored."""
        return read_answer(model, await self.ask(question))

    async def ask(self, question: Question) -> RegistryReply:
        """Send a request and return the answer; RegistryError if it is not 2xx, or does not come in time."""
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + self.timeout_seconds + question.waits_s
        may_have_been_done = False
        for tries in range(1, MAX_TRIES + 1):
            is_alone = not question.may_repeat or tries == MAX_TRIES or self._is_slow
            share = 1.0 if is_alone else ATTEMPT_TIMEOUT_RATIO
            began_s = now_s()
            give_up_s = began_s + (deadline_s - began_s) * share
            outcome = await self._ask_once(question, give_up_s)
            self._note_speed(
                question, outcome, took_s=now_s() - began_s, is_given_up=now_s() >= give_up_s - EARLY_S
            )
            if isinstance(outcome, RegistryReply):
                return outcome
            outcome.may_be_repeat = may_have_been_done
            may_have_been_done = may_have_been_done or may_have_been_executed(outcome)
            wait_s = self.wait_s(outcome, tries)
            is_over = tries == MAX_TRIES or now_s() + wait_s >= deadline_s
            if is_over or not _is_worth_repeating(outcome, question):
                raise outcome
            await self.sleep(wait_s)
        raise AssertionError("the last try returns or raises")  # pragma: no cover

    def _note_speed(
        self,
        question: Question,
        outcome: RegistryReply | RegistryError,
        *,
        took_s: float,
        is_given_up: bool,
    ) -> None:
        if isinstance(outcome, Unreachable):
            self._is_slow |= is_given_up
        elif not question.waits_s and took_s < self.timeout_seconds * ATTEMPT_TIMEOUT_RATIO:
            self._is_slow = False

    def wait_s(self, error: RegistryError, tries: int) -> float:
        """Return how long to wait after so many failed attempts: the requested wait, plus a random time."""
        own_s = min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** min(tries - 1, 30))
        # Clients that were refused together must not return together.
        return (error.retry_after_s or 0.0) + own_s * (0.5 + 0.5 * self._chance())

    async def stream(self, question: Question) -> AsyncGenerator[bytes, None]:
        """Send a request and yield the pieces of its `text/event-stream` answer, until it ends or times out.

        Close it (`contextlib.aclosing`): the connection is of no other use.
        """
        loop = asyncio.get_running_loop()
        failure: RegistryError | None = None
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout_at(loop.time() + self.timeout_seconds):
                key = self._current_key()
                response = await self._send(question, key)
                failure = await _stream_refusal(response, self._scrubber)
                if failure is not None and self._is_replaced(key, failure):
                    response.close()
                    response = await self._send(question, self._current_key())
                    failure = await _stream_refusal(response, self._scrubber)
                counter = counter_of(response)
            while failure is None:
                async with asyncio.timeout(IDLE_SECONDS):
                    piece = await read_piece(response, counter)
                if not piece:
                    return
                yield piece
        except FAILURES as error:
            failure = _failure(self.url, error, self._scrubber)
        finally:
            if response is not None:
                response.close()
        # Outside of `except`: an error of the HTTP library carries the request's headers along.
        raise failure

    async def _ask_once(self, question: Question, deadline_s: float) -> RegistryReply | RegistryError:
        key = self._current_key()
        outcome = await self._ask_with(key, question, deadline_s)
        if isinstance(outcome, RegistryError) and self._is_replaced(key, outcome):
            return await self._ask_with(self._current_key(), question, deadline_s)
        return outcome

    def _is_replaced(self, key: str | None, error: RegistryError) -> bool:
        return isinstance(error, NotAuthorized) and self._keys.is_replaced(key)

    def _current_key(self) -> str | None:
        key = self._keys.current()
        if key != self._sent_key:
            # The registry, or a proxy before it, may quote the key in an error; also the former one, as
            # requests with that key may be in progress.
            self._scrubber = scrubber_of(key, self._sent_key)
            self._sent_key = key
        return key

    async def _ask_with(
        self, key: str | None, question: Question, deadline_s: float
    ) -> RegistryReply | RegistryError:
        sent_at_s = boot_clock.now_s()
        try:
            async with asyncio.timeout_at(deadline_s), await self._send(question, key) as response:
                body = await read_bounded(response, MAX_BODY_BYTES, counter_of(response))
        except FAILURES as error:
            return _failure(self.url, error, self._scrubber)
        if body is None:
            return InvalidAnswer(f"the answer has more than {MAX_BODY_BYTES} bytes", status=response.status)
        if not 200 <= response.status < 300:
            return _refusal(response, body, self._scrubber)
        content_type = self._scrubber.clean_text(media_type(response.headers))
        return RegistryReply(
            status=response.status,
            content_type=content_type,
            body=body,
            sent_at_s=sent_at_s,
            scrubber=self._scrubber,
        )

    async def _send(self, question: Question, key: str | None) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "User-Agent": user_agent(), **question.headers}
        if question.body is not None:
            headers["Content-Type"] = "application/json"
        if key is not None:
            headers["X-API-Key"] = key
        query = f"?{urlencode(question.query)}" if question.query else ""
        return await self._session().request(
            question.method,
            # Not joined: percent-encoded characters stay so.
            URL(f"{self.url}{question.path}{query}", encoded=True),
            data=question.body() if callable(question.body) else question.body,
            headers=headers,
            allow_redirects=False,
            raise_for_status=False,
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=True,
            read_bufsize=READ_BYTES,
            max_line_size=MAX_HEADER_LINE_BYTES,
            max_field_size=MAX_HEADER_LINE_BYTES,
            max_headers=MAX_HEADERS,
        )

    def _session(self) -> aiohttp.ClientSession:
        if self._given_session is not None:
            return self._given_session
        if self._own_session is None:
            connector = ByteCountingConnector(limit=MAX_CONNECTIONS, listeners=IN_THIS_PROCESS)
            self._own_session = counting_session(connector)
        return self._own_session


def read_answer(model: type[M], reply: RegistryReply) -> M:
    """Return a reply's body as this model; InvalidAnswer says where the body differs."""
    not_a_registry = f"HTTP {reply.status}: this is not a lifesign registry"
    if reply.content_type != "application/json":
        what = f"expected application/json; got {reply.content_type[:80]!a}"
        raise InvalidAnswer(f"{not_a_registry}: {what}", status=reply.status)
    try:
        # A newer registry may return more members.
        return model.model_validate_json(reply.body, extra="ignore")
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if fault["type"] == "json_invalid" or not fault["loc"]:
        raise InvalidAnswer(f"{not_a_registry}: expected a JSON object", status=reply.status)
    what = reply.scrubber.clean_cut(f"{json_pointer(*fault['loc'])[:80]}: {fault['msg'][:200]}")
    raise InvalidAnswer(f"{not_a_registry}, or one of another version: {what}", status=reply.status)


def _is_worth_repeating(error: RegistryError, question: Question) -> bool:
    if isinstance(error, Unreachable) and not error.was_sent:
        return True
    return question.may_repeat and isinstance(error, Unreachable | Unavailable | RateLimited)


async def _stream_refusal(response: aiohttp.ClientResponse, scrubber: Scrubber) -> RegistryError | None:
    """Return why an answer is no stream, or None."""
    if response.status == 200:
        content_type = scrubber.clean_text(media_type(response.headers))
        if content_type == "text/event-stream":
            return None
        what = f"expected text/event-stream; got {content_type[:80]!a}"
        return InvalidAnswer(f"HTTP 200: {what}", status=200)
    body = await read_bounded(response, MAX_BODY_BYTES, counter_of(response)) or b""
    return _refusal(response, body, scrubber)


def _refusal(response: aiohttp.ClientResponse, body: bytes, scrubber: Scrubber) -> RegistryError:
    try:
        parsed: Any = from_json(scrubber.clean_shown(body))
    except ValueError:
        parsed = None
    retry_after = retry_after_seconds(response.headers.get("Retry-After", ""), datetime.now(UTC))
    reason = scrubber.clean_text(ascii(response.reason or "")[1:-1])
    return error_of(response.status, parsed, reason=reason, retry_after_s=retry_after)


def _failure(url: URL, error: BaseException, scrubber: Scrubber) -> RegistryError:
    reason = scrubber.clean_cut(classify_failure(url, error)[1])
    if isinstance(error, aiohttp.ClientResponseError | TooManyBytes):
        return InvalidAnswer(reason)
    is_before = isinstance(
        error, aiohttp.ClientConnectorError | aiohttp.InvalidURL | UnicodeError | ListenerChanged
    )
    unreachable = Unreachable(reason, was_sent=not is_before)
    unreachable.hint = _hint(url, error)
    return unreachable


def _hint(url: URL, error: BaseException) -> str:
    """Return what to do about a failed connection; empty if that is unknown."""
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return PLAIN_HTTP_HINT if getattr(error.os_error, "reason", "") in _NO_TLS_REASONS else ""
    if isinstance(error, aiohttp.ClientConnectorError):
        return NOT_RUNNING_HINT if isinstance(error.os_error, ConnectionRefusedError) else ""
    # A TLS server closes a connection whose first bytes are no TLS.
    is_closed = isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError)
    return TLS_HINT if is_closed and url.scheme == "http" else ""


def _without_query(url: str) -> str:
    """Return a URL with `...` in place of its query, which may be a secret."""
    place, mark, query = url.partition("?")
    return f"{place}?..." if mark and query else url


def parse_registry_url(text: str, *, allow_plain_http: bool) -> URL:
    """Return the URL of a registry in normal form; InvalidValue if no client would send its key there.

    Letter case of the host, a default port and slashes at the end do not matter. Another name of the same
    host, or another path, is another URL.
    """
    try:
        url = parse_agent_url(text).url
    except InvalidValue as error:
        raise InvalidValue("url", _without_query(str(error.given)), _EXPECTED_URL) from None
    if url.raw_query_string:
        raise InvalidValue("url", _without_query(text), _EXPECTED_URL)
    if not allow_plain_http and is_in_the_clear(str(url.origin())):
        raise InvalidValue("url", text, "https, since the key must not be sent unencrypted")
    return URL(str(url).rstrip("/"), encoded=True)
