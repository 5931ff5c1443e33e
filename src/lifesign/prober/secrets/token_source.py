"""Access tokens of one OAuth 2 client: renewed shortly before they expire, and kept until then."""

import asyncio
import contextvars
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final

from lifesign.domain.common.backoff import FIRST_WAIT_SECONDS, Backoff
from lifesign.domain.credentials.token import AccessToken, TokenFault, TokenFaultKind

MAX_WAIT_SECONDS: Final = 900.0
"""Maximum wait after failed requests for a token."""
DROP_SECONDS: Final = 60.0
"""A token that an agent rejects is replaced at most once in this time."""
MAX_PAST_TOKENS: Final = 4
"""Former tokens that are still removed from texts."""
RETRY_PATIENCE_SECONDS: Final = 1.0
"""How long a probe waits for a token after the last request for one failed."""

Renew = Callable[[str | None], Awaitable[AccessToken | TokenFault]]
"""Obtains a token. The argument is the rejected token, or None; never raises for faults of a peer."""

_log = logging.getLogger("lifesign.prober")


class TokenSource:
    """Obtains and keeps the access token of one OAuth 2 client, with at most one request at a time."""

    def __init__(
        self,
        name: str,
        renew: Renew,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        *,
        is_owner: bool = True,
    ) -> None:
        """`name`: name of the credential, for logs.

        `is_owner`: whether this process calls the token endpoint. False: another process does, with back-off
        and logs for all.
        """
        self.name = name
        self._renew = renew
        self._clock = clock
        self._is_owner = is_owner
        self._backoff = Backoff(chance, max_wait_s=MAX_WAIT_SECONDS if is_owner else FIRST_WAIT_SECONDS)
        self._tokens: tuple[str, ...] = ()
        """The newest first."""
        self._rejected: str | None = None
        self._renew_at_s = 0.0
        self._ends_at_s = 0.0
        self._retry_at_s = 0.0
        self._dropped_at_s: float | None = None
        self._request: asyncio.Task[None] | None = None
        self.fault: TokenFault | None = None
        """Why the last request brought no token; None if it did, or there was none."""
        self.on_token: Callable[[AccessToken], None] | None = None
        """Called with each new token."""

    @property
    def token(self) -> str | None:
        """The present access token; None if there is none."""
        is_used = bool(self._tokens) and self._rejected is None and self._clock() < self._ends_at_s
        return self._tokens[0] if is_used else None

    @property
    def left_s(self) -> float:
        """Seconds for which the present token is used; 0 if there is none."""
        return 0.0 if self.token is None else self._ends_at_s - self._clock()

    @property
    def renew_in_s(self) -> float:
        """Seconds until a new token may be requested in place of the present one; 0 for at once."""
        return max(0.0, self._renew_at_s - self._clock(), self.retry_in_s)

    @property
    def retry_in_s(self) -> float:
        """Seconds until a token is requested again after a failure; 0 for at once."""
        return max(0.0, self._retry_at_s - self._clock())

    def secrets(self) -> Sequence[str]:
        """Return all texts that must not be shown, including former tokens."""
        return self._tokens

    async def prepare(self, seconds: float) -> bool:
        """Request a token if there is none, waiting up to `seconds`; return whether there is one then.

        A token that is to be renewed stays in use meanwhile: no probe waits for its renewal.
        """
        if self.token is not None and self._clock() < self._renew_at_s:
            return True
        if self._request is None:
            if self._clock() < self._retry_at_s:
                return self.token is not None
            # In a separate context: it is no request to the target whose probe needs the token.
            context = contextvars.Context()
            self._request = asyncio.get_running_loop().create_task(self._request_token(), context=context)
        if self.token is not None:
            return True
        patience_s = seconds if self.fault is None else min(seconds, RETRY_PATIENCE_SECONDS)
        await asyncio.wait([self._request], timeout=max(0.0, patience_s))
        return self.token is not None

    def retry(self) -> None:
        """End the wait after failed requests: the secret of the client has changed."""
        self._retry_at_s = 0.0
        self._backoff.over()

    def drop(self, token: str) -> bool:
        """Stop using a token that a server rejected; return whether another one may be tried."""
        if self.token is None or self.token != token:
            # Another probe has had it replaced.
            return True
        now_s = self._clock()
        if self._dropped_at_s is not None and now_s - self._dropped_at_s < DROP_SECONDS:
            return False
        if now_s < self._retry_at_s:
            # No other token could be requested now: the one agent would take this one from all others.
            return False
        self._dropped_at_s = now_s
        self._rejected = token
        return True

    async def close(self) -> None:
        """Cancel a running request for a token."""
        if self._request is not None:
            self._request.cancel()
            await asyncio.wait([self._request])

    async def _request_token(self) -> None:
        try:
            found = await self._renew(self._rejected)
        except Exception as defect:  # noqa: BLE001 - the next request may succeed
            _log.exception(
                "the request for a token of the credential %s failed because of a defect in lifesign",
                self.name,
            )
            reason = f"a defect of the prober: {type(defect).__name__}"
            found = TokenFault(kind=TokenFaultKind.NO_ANSWER, reason=reason)
        finally:
            self._request = None
        if isinstance(found, AccessToken):
            self.take(found)
        else:
            self._note_fault(found)

    def take(self, token: AccessToken) -> None:
        """Use a new token, which this process or another one has requested."""
        if self.fault is not None and self._is_owner:
            _log.warning("the credential %s has a token again", self.name)
        past = (each for each in self._tokens if each != token.value)
        self._tokens = (token.value, *islice(past, MAX_PAST_TOKENS))
        now_s = self._clock()
        self._renew_at_s = now_s + token.renew_after_s
        self._ends_at_s = now_s + token.lifetime_s
        self._rejected = None
        self.fault = None
        self._backoff.over()
        if self.on_token is not None:
            self.on_token(token)

    def _note_fault(self, fault: TokenFault) -> None:
        wait_s = max(self._backoff.wait_s(), fault.retry_after_s or 0.0)
        self._retry_at_s = self._clock() + min(MAX_WAIT_SECONDS, wait_s)
        # One agent that rejects a token must not invalidate it for all others.
        self._rejected = None
        if self.fault is None and self._is_owner:
            _log.warning("could not get a token for the credential %s: %s", self.name, fault)
        self.fault = fault
