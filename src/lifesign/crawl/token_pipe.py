"""Access tokens for the processes of a crawl: one process requests them, the others get them through pipes.

No token is written to a disk, and all processes together cause one request per lifetime of a token. Each
process gets each token at once: it removes from answers what another process has sent.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Final

from lifesign.crawl.pipe_reader import add_pipe_reader
from lifesign.domain.common.backoff import FIRST_WAIT_SECONDS
from lifesign.domain.credentials.token import AccessToken, TokenFault, TokenFaultKind
from lifesign.prober.secrets.credential_store import Credential, CredentialStore
from lifesign.prober.secrets.token_source import TokenSource

GONE: Final = "the process that requests tokens is gone"
MAX_WAITING: Final = 1_000
"""Messages to a process that does not read, above which it gets no notice of new tokens."""


@dataclass(frozen=True, slots=True)
class TokenQuery:
    """Request of a worker process for the token of a credential."""

    number: int
    credential: str
    """Name of the credential."""
    rejected: str | None = field(default=None, repr=False)
    """The token that an agent rejected, if that is why."""


@dataclass(frozen=True, slots=True)
class TokenReply:
    """Reply to the TokenQuery with the same number."""

    number: int
    found: AccessToken | TokenFault


@dataclass(frozen=True, slots=True)
class TokenNotice:
    """A new token, which a process gets without a query."""

    credential: str
    """Name of the first credential of its OAuth 2 client."""
    token: AccessToken


class TokenOwner:
    """Obtains OAuth tokens for all processes of a crawl, in the process that calls the token endpoints."""

    def __init__(self, credentials: CredentialStore, seconds: float) -> None:
        """`seconds`: time limit of a request for a token, the same as for the token endpoint."""
        self._credentials = credentials
        self._seconds = seconds
        self._outboxes: set[_Outbox] = set()
        for source in credentials.token_sources:
            source.on_token = partial(self._notify, source.name)

    async def token(self, name: str, rejected: str | None) -> AccessToken | TokenFault:
        """Return the token of a credential and its remaining lifetime, or why there is none."""
        tokens = self._credentials.named(name).tokens
        if tokens is None:
            return TokenFault(
                kind=TokenFaultKind.NO_ANSWER,
                reason="the credential is not an OAuth 2 credential, so there are no tokens for it",
            )
        if rejected is not None:
            tokens.drop(rejected)
        await tokens.prepare(self._seconds)
        present = _present_token(tokens)
        is_left = present is not None and present.value == rejected and tokens.fault is not None
        if present is not None and not is_left:
            return present
        # The other process keeps a rejected token that could not be replaced, and reports why.
        fault = tokens.fault or TokenFault(kind=TokenFaultKind.NO_ANSWER, reason="no answer yet")
        # The other process soon asks again: the wait, which a changed secret ends, is this one's.
        return replace(fault, retry_after_s=None)

    @contextmanager
    def answering(self, pipe: Connection) -> Iterator[None]:
        """Answer the requests that come through a pipe, and close the pipe at the end of the block."""
        loop = asyncio.get_running_loop()
        replies: set[asyncio.Task[None]] = set()
        outbox = _Outbox(pipe)
        for source in self._credentials.token_sources:
            if (present := _present_token(source)) is not None:
                outbox.put(TokenNotice(source.name, present))
        self._outboxes.add(outbox)

        async def reply(query: TokenQuery) -> None:
            outbox.put(TokenReply(query.number, await self.token(query.credential, query.rejected)))

        def receive() -> None:
            try:
                while pipe.poll():
                    task = loop.create_task(reply(pipe.recv()))
                    replies.add(task)
                    task.add_done_callback(replies.discard)
            except (EOFError, OSError):
                loop.remove_reader(pipe.fileno())

        add_pipe_reader(loop, pipe, receive)
        try:
            yield
        finally:
            loop.remove_reader(pipe.fileno())
            for task in replies:
                task.cancel()
            self._outboxes.remove(outbox)
            outbox.close()
            pipe.close()

    def _notify(self, name: str, token: AccessToken) -> None:
        """Send a new token to all processes, before the reply to the one that asked for it."""
        for outbox in self._outboxes:
            if not outbox.is_full:
                outbox.put(TokenNotice(name, token))


def _present_token(tokens: TokenSource) -> AccessToken | None:
    """Return the present token with its remaining times; None if there is none."""
    if (value := tokens.token) is None:
        return None
    # While a renewal is in progress, the other process asks again after a second.
    renew_after_s = max(FIRST_WAIT_SECONDS, tokens.renew_in_s)
    return AccessToken(value=value, renew_after_s=renew_after_s, lifetime_s=tokens.left_s)


class _Outbox:
    """Messages to one process, written in their order."""

    def __init__(self, pipe: Connection) -> None:
        """Within a running loop."""
        self._pipe = pipe
        self._waiting: asyncio.Queue[TokenReply | TokenNotice] = asyncio.Queue()
        self._writing = asyncio.get_running_loop().create_task(self._write())

    @property
    def is_full(self) -> bool:
        """Whether the process has not read its messages for long."""
        return self._waiting.qsize() >= MAX_WAITING

    def put(self, message: TokenReply | TokenNotice) -> None:
        """Send a message."""
        self._waiting.put_nowait(message)

    def close(self) -> None:
        """Send nothing more."""
        self._writing.cancel()

    async def _write(self) -> None:
        # OSError: the process has ended.
        with suppress(OSError):
            while True:
                # In a thread: a process that is stopped does not read.
                await asyncio.to_thread(self._pipe.send, await self._waiting.get())


class TokenPipe:
    """Requests OAuth tokens through a pipe from the process that calls the token endpoints."""

    def __init__(self, pipe: Connection) -> None:
        """Within a running loop."""
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()
        self._asked: dict[int, asyncio.Future[TokenReply]] = {}
        self._number = 0
        self._sources: dict[str, TokenSource] | None = None
        self._early: list[TokenNotice] = []
        """Notices that came before the store of the credentials existed."""
        add_pipe_reader(self._loop, pipe, self._receive)

    async def request(self, credential: Credential, rejected: str | None) -> AccessToken | TokenFault:
        """Obtain a token for a credential. `rejected`: the token that an agent rejected, or None."""
        self._number += 1
        number = self._number
        answer: asyncio.Future[TokenReply] = self._loop.create_future()
        self._asked[number] = answer
        try:
            self._pipe.send(TokenQuery(number, credential.name, rejected))
        except OSError:
            answer.set_result(_pipe_closed(number))
        try:
            return (await answer).found
        finally:
            del self._asked[number]

    def pass_tokens_to(self, credentials: CredentialStore) -> None:
        """Give the credentials each token that any process has requested, as soon as it exists."""
        self._sources = {source.name: source for source in credentials.token_sources}
        for notice in self._early:
            self._take(notice)
        self._early.clear()

    def _take(self, notice: TokenNotice) -> None:
        if self._sources is None:
            self._early.append(notice)
        else:
            self._sources[notice.credential].take(notice.token)

    def close(self) -> None:
        """Close the pipe: no token is requested any more."""
        self._loop.remove_reader(self._pipe.fileno())
        self._pipe.close()

    def _receive(self) -> None:
        try:
            while self._pipe.poll():
                message: TokenReply | TokenNotice = self._pipe.recv()
                if isinstance(message, TokenNotice):
                    self._take(message)
                    continue
                answer = self._asked.get(message.number)
                if answer is not None and not answer.done():
                    answer.set_result(message)
        except (EOFError, OSError):
            self._loop.remove_reader(self._pipe.fileno())
            for number, answer in self._asked.items():
                if not answer.done():
                    answer.set_result(_pipe_closed(number))


def _pipe_closed(number: int) -> TokenReply:
    return TokenReply(number, TokenFault(kind=TokenFaultKind.NO_ANSWER, reason=GONE))
