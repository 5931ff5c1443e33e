"""Client for an opencode server: events and sessions.

As of version 1.18.33: `GET /event?directory=` sends the events of the sessions in one directory, and nothing
for a wrong one; `GET /global/event` sends those of all. `GET /session/status?directory=` lists the sessions
of that directory that are not idle; `GET /session/{id}` knows every session with its directory.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import aiohttp
from yarl import URL

from lifesign.client.candidate_urls import parse_agent_url
from lifesign.client.event_stream import EventStreamParser
from lifesign.client.registry_errors import InvalidAnswer
from lifesign.domain.activity.passive_heartbeat import SERVER_SILENT_S, WatchedSessionState
from lifesign.domain.credentials.secret import scrubber_of
from lifesign.domain.parsing.bounded_json import parse_or_none
from lifesign.domain.targets.target import is_in_the_clear
from lifesign.errors import InvalidValue, NoAnswer
from lifesign.http_client.bounded_body import read_bounded, read_piece
from lifesign.http_client.bounded_get import user_agent
from lifesign.http_client.counted_sessions import ByteCountingConnector, counter_of, counting_session
from lifesign.http_client.failures import FAILURES, classify_failure
from lifesign.http_client.headers import media_type
from lifesign.loopback.listeners import IN_THIS_PROCESS

ANSWER_SECONDS: Final = 10.0
"""Time limit for one answer, and for the start of the stream."""
ASKING_SECONDS: Final = 20.0
"""Time limit for all answers about all sessions; the stream waits meanwhile."""
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
MAX_CONNECTIONS: Final = 8
DEFAULT_USER: Final = "opencode"
PASSWORD_VARIABLE: Final = "OPENCODE_SERVER_PASSWORD"  # noqa: S105 - where it is, not what it is
USER_VARIABLE: Final = "OPENCODE_SERVER_USERNAME"

_ASKS: Final = f"the server requires a password: set ${PASSWORD_VARIABLE} (and ${USER_VARIABLE} if needed)"
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z]:[/\\]")
"""Start of an absolute path, on any system of the server."""
T = TypeVar("T")


class OpencodeUnreachable(NoAnswer):
    """The server gives no usable answer now; a later request may succeed."""


class NotOpencode(NoAnswer):
    """The answer is not that of an opencode server; a retry will probably not help."""


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """State of a session in the server's answer."""

    state: WatchedSessionState
    why: str = ""
    """Why no heartbeats can be sent for the idle session, for people."""


class OpencodeServer:
    """An opencode server, called over HTTP. `async with` closes its connections.

    `directory` is the directory of the sessions to follow; None: all sessions. InvalidValue for an invalid
    URL or directory, and for a password that would be sent unencrypted to another machine, unless
    `allow_plain_http`.
    """

    def __init__(
        self,
        url: str,
        *,
        directory: str | None = None,
        password: str | None = None,
        username: str | None = None,
        allow_plain_http: bool = False,
    ) -> None:
        self.url = parse_agent_url(url).url.with_query(None)
        if password and is_in_the_clear(str(self.url.origin())) and not allow_plain_http:
            raise InvalidValue("URL", url, "https, since the password must not be sent unencrypted")
        if directory is not None and not _ABSOLUTE.match(directory):
            raise InvalidValue("directory", directory, "an absolute path on the server")
        self.directory = directory
        self._auth = aiohttp.encode_basic_auth(username or DEFAULT_USER, password) if password else None
        pair = None if self._auth is None else self._auth.partition(" ")[2]
        self._scrubber = scrubber_of(password, pair)
        """Removes the password from what the server sends: it may send it back."""
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = counting_session(
            ByteCountingConnector(limit=MAX_CONNECTIONS, listeners=IN_THIS_PROCESS)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None  # noqa: S101 - it was entered
        await self._session.close()

    @asynccontextmanager
    async def events(self) -> AsyncIterator[AsyncGenerator[list[str], None]]:
        """Open the server's event stream.

        After each complete line, it yields the data of the messages that have arrived. The list may be empty:
        a line alone shows that the server runs. Never ends by itself: raises OpencodeUnreachable when the
        stream ends, is silent for SERVER_SILENT_S, or has a line without end. NotOpencode if the answer is no
        stream.
        """
        path = "/global/event" if self.directory is None else "/event"
        response = await self._get(path, {} if self.directory is None else {"directory": self.directory})
        try:
            self._check(response, path, "text/event-stream")
            async with aclosing(self._lines(response)) as lines:
                yield lines
        finally:
            response.close()

    async def session_statuses(self, sessions: Collection[str]) -> dict[str, SessionStatus]:
        """Return the current state of these sessions; UNKNOWN for one that cannot be read.

        Raises OpencodeUnreachable or NotOpencode if none can be read.
        """
        until_s = asyncio.get_running_loop().time() + ASKING_SECONDS
        places = await _all({known: self._place_of(known) for known in sessions}, until_s)
        directories = {place for place in places.values() if isinstance(place, str)}
        working = await _all({place: self._working_in(place) for place in sorted(directories)}, until_s)
        failures = [
            answer for answer in (*places.values(), *working.values()) if isinstance(answer, NoAnswer)
        ]
        found = {known: self._session_status(known, place, working) for known, place in places.items()}
        if failures and all(status.state is WatchedSessionState.UNKNOWN for status in found.values()):
            raise failures[0]
        return found

    def _session_status(
        self,
        session_id: str,
        place: str | NoAnswer | None,
        working: Mapping[str, Collection[str] | NoAnswer],
    ) -> SessionStatus:
        if isinstance(place, NoAnswer):
            return SessionStatus(WatchedSessionState.UNKNOWN, str(place))
        if place is None:
            return SessionStatus(WatchedSessionState.ABSENT, "the server has no such session")
        if self.directory is not None and place.rstrip("/") != self.directory.rstrip("/"):
            return SessionStatus(
                WatchedSessionState.ABSENT,
                f"the session works in {place[:200]!a}, not in the watched directory",
            )
        busy = working[place]
        if isinstance(busy, NoAnswer):
            return SessionStatus(WatchedSessionState.UNKNOWN, str(busy))
        return SessionStatus(WatchedSessionState.BUSY if session_id in busy else WatchedSessionState.IDLE)

    async def _place_of(self, session_id: str) -> str | None:
        """Return the directory where a session works; None if there is no such session."""
        status, answer = await self._ask(f"/session/{quote(session_id, safe='')}", {})
        if status == 404:
            return None
        place = answer.get("directory")
        if not isinstance(place, str):
            raise NotOpencode(f"{self.url}: a session without a directory")
        return place

    async def _working_in(self, directory: str) -> Collection[str]:
        """Return the busy sessions of a directory."""
        _, answer = await self._ask("/session/status", {"directory": directory})
        return {
            session_id
            for session_id, status in answer.items()
            if not (isinstance(status, dict) and status.get("type") == "idle")
        }

    async def _ask(self, path: str, query: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        response = await self._get(path, query)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if response.status != 404 or media_type(response.headers) != "application/json":
                    self._check(response, path, "application/json")
                body = await read_bounded(response, MAX_BODY_BYTES, counter_of(response))
        except FAILURES as error:
            raise self._unreachable(error) from None
        finally:
            response.release()
        answer = None if body is None else parse_or_none(self._scrubber.clean(body))
        if not isinstance(answer, dict):
            raise NotOpencode(f"{path}: expected a JSON object of at most {MAX_BODY_BYTES} bytes")
        return response.status, answer

    async def _get(self, path: str, query: Mapping[str, str]) -> aiohttp.ClientResponse:
        assert self._session is not None, "requires `async with`"  # noqa: S101
        base = URL(str(self.url).rstrip("/"), encoded=True)
        headers = {"User-Agent": user_agent(), "Cache-Control": "no-store"}
        if self._auth is not None:
            headers["Authorization"] = self._auth
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._session.get(
                    URL(f"{base}{path}", encoded=True).with_query(query),
                    headers=headers,
                    allow_redirects=False,
                    raise_for_status=False,
                    timeout=aiohttp.ClientTimeout(total=None),
                    auto_decompress=True,
                )
        except FAILURES as error:
            failure = self._unreachable(error)
        # Outside of `except`: an error of the HTTP library carries the request's headers along.
        raise failure

    async def _lines(self, response: aiohttp.ClientResponse) -> AsyncGenerator[list[str], None]:
        now_s = asyncio.get_running_loop().time
        parser = EventStreamParser()
        counter = counter_of(response)
        heard_s = now_s()
        while True:
            try:
                async with asyncio.timeout_at(heard_s + SERVER_SILENT_S):
                    piece = await read_piece(response, counter)
                before = parser.lines
                messages = parser.feed(piece)
            except TimeoutError:
                raise OpencodeUnreachable(f"the server was silent for {SERVER_SILENT_S:g} s") from None
            except InvalidAnswer as error:
                raise OpencodeUnreachable(str(error)) from None
            except aiohttp.ClientPayloadError:
                raise OpencodeUnreachable("the stream was interrupted") from None
            except FAILURES as error:
                raise self._unreachable(error) from None
            if not piece:
                raise OpencodeUnreachable("the stream ended")
            if parser.lines > before:
                heard_s = now_s()
                yield [self._scrubber.clean_text(message.data) for message in messages if message.data]

    def _check(self, response: aiohttp.ClientResponse, path: str, expected: str) -> None:
        """Raise the fault of an answer's head, if any."""
        status, got = response.status, self._scrubber.clean_cut(media_type(response.headers)[:80])
        if status == 200 and got == expected:
            return
        if status == 401:
            text = (
                f"the server refuses the password in ${PASSWORD_VARIABLE}"
                if self._auth is not None
                else _ASKS
            )
            raise NotOpencode(f"{path}: HTTP 401: {text}")
        if status in {408, 425, 429} or status >= 500:
            raise OpencodeUnreachable(f"{path}: HTTP {status}")
        what = f"expected {expected}, got {got!a}" if status == 200 else "expected 200"
        raise NotOpencode(
            f"{path}: HTTP {status}: {what}: check that the server at this URL is an opencode server"
        )

    def _unreachable(self, error: BaseException) -> OpencodeUnreachable:
        """Return the failure of a request."""
        return OpencodeUnreachable(self._scrubber.clean_cut(classify_failure(self.url, error)[1]))


async def _all(questions: Mapping[str, Coroutine[Any, Any, T]], until_s: float) -> dict[str, T | NoAnswer]:
    """Return each answer, or why there is none by that time of the loop's clock."""
    tasks = [asyncio.ensure_future(_answer_or_failure(question, until_s)) for question in questions.values()]
    try:
        return dict(zip(questions, await asyncio.gather(*tasks), strict=True))
    finally:
        for task in tasks:
            task.cancel()


async def _answer_or_failure(question: Coroutine[Any, Any, T], until_s: float) -> T | NoAnswer:
    try:
        async with asyncio.timeout_at(until_s):
            return await question
    except TimeoutError:
        return OpencodeUnreachable(f"no answers about all sessions within {ASKING_SECONDS:g} s")
    except (OpencodeUnreachable, NotOpencode) as error:
        return error
