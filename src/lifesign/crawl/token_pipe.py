"""Access tokens for the processes of a crawl: one process requests them, the others get them through pipes.

No token is written to a disk, and all processes together cause one request per lifetime of a token.
"""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Final

from lifesign.domain.credentials.token import AccessToken, TokenFault, TokenFaultKind
from lifesign.prober.secrets.credential_store import Credential, CredentialStore

GONE: Final = "the process that requests tokens is gone"


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
    refresh_tokens: tuple[str, ...] = field(default=(), repr=False)
    """Those that a target may send back; only to be removed from texts."""


class TokenOwner:
    """Obtains OAuth tokens for all processes of a crawl, in the process that has the client secrets."""

    def __init__(self, credentials: CredentialStore, seconds: float, probed: Collection[str] = ()) -> None:
        """`seconds`: time limit of a request for a token, the same as for the token endpoint.

        `probed`: the result of `probed_providers`.
        """
        self._credentials = credentials
        self._seconds = seconds
        self._probed = probed

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
        if (value := tokens.token) is not None:
            return AccessToken(value=value, lifetime_s=tokens.left_s)
        fault = tokens.fault or TokenFault(kind=TokenFaultKind.NO_ANSWER, reason="no answer yet")
        return replace(fault, retry_after_s=tokens.retry_in_s)

    @contextmanager
    def answering(self, pipe: Connection) -> Iterator[None]:
        """Answer the requests that come through a pipe, and close the pipe at the end of the block."""
        loop = asyncio.get_running_loop()
        replies: set[asyncio.Task[None]] = set()
        # Written in a thread: a process that is stopped does not read.
        writing = asyncio.Lock()

        async def reply(query: TokenQuery) -> None:
            name = query.credential
            found = await self.token(name, query.rejected)
            used = self._credentials.named(name).refresh_tokens if name in self._probed else ()
            answer = TokenReply(query.number, found, tuple(used))
            async with writing:
                try:
                    await asyncio.to_thread(pipe.send, answer)
                except OSError:
                    # The process has ended.
                    loop.remove_reader(pipe.fileno())

        def receive() -> None:
            try:
                while pipe.poll():
                    task = loop.create_task(reply(pipe.recv()))
                    replies.add(task)
                    task.add_done_callback(replies.discard)
            except (EOFError, OSError):
                loop.remove_reader(pipe.fileno())

        loop.add_reader(pipe.fileno(), receive)
        try:
            yield
        finally:
            loop.remove_reader(pipe.fileno())
            for task in replies:
                task.cancel()
            pipe.close()


class TokenPipe:
    """Requests OAuth tokens through a pipe from the process that has the client secrets."""

    def __init__(self, pipe: Connection) -> None:
        """Within a running loop."""
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()
        self._asked: dict[int, asyncio.Future[TokenReply]] = {}
        self._number = 0
        self._loop.add_reader(pipe.fileno(), self._receive)

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
            reply = await answer
        finally:
            del self._asked[number]
        for token in reversed(reply.refresh_tokens):
            credential.note_refresh_token(token)
        return reply.found

    def close(self) -> None:
        """Close the pipe: no token is requested any more."""
        self._loop.remove_reader(self._pipe.fileno())
        self._pipe.close()

    def _receive(self) -> None:
        try:
            while self._pipe.poll():
                reply: TokenReply = self._pipe.recv()
                answer = self._asked.get(reply.number)
                if answer is not None and not answer.done():
                    answer.set_result(reply)
        except (EOFError, OSError):
            self._loop.remove_reader(self._pipe.fileno())
            for number, answer in self._asked.items():
                if not answer.done():
                    answer.set_result(_pipe_closed(number))


def _pipe_closed(number: int) -> TokenReply:
    return TokenReply(number, TokenFault(kind=TokenFaultKind.NO_ANSWER, reason=GONE))
