"""Renewal of one lease while its work continues, and its loss (lease protocol; protocol 6.5).

The deadline is the holder's own: it counts on the clock of leases (`boot_clock`) from the time of the
request that acquired or renewed the lease, so that the registry never considers it expired before its holder
does.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Self

from lifesign import boot_clock
from lifesign.client.registry_errors import NotAuthorized, NotPermitted, RegistryError, is_final
from lifesign.client.registry_leases import RegistryLeases
from lifesign.client.registry_tasks import GrantedTask
from lifesign.domain.tasks.lease import TTL_SECONDS, EndReason
from lifesign.domain.tasks.lease_renewal import (
    RENEW_RATIO,
    next_try_s,
    notice_at_s,
    renewal_due_s,
    try_ends_s,
)
from lifesign.domain.text.error_line import error_line

_ENDED: Final[Mapping[str, str]] = MappingProxyType({
    EndReason.RELEASED:           "it was given back",
    EndReason.REVOKED:            "the task was cancelled",
    EndReason.EXPIRED:            "its lease has expired in the registry",
    EndReason.AGENT_DEAD:         "the registry has declared this agent dead",
    EndReason.AGENT_DEREGISTERED: "this agent was deregistered",
    EndReason.EPOCH_RAISED:       "the registry was restored from a backup, which ended all earlier leases",
})  # fmt: skip
"""Descriptions of a registry's refusals to renew, for the holder."""

_log = logging.getLogger("lifesign.lease")


class _CutOff(RegistryError):
    """We did not wait any longer for an answer."""


class _Unexpected(RegistryError):
    """The request failed with an error that is not the registry's."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error_line(error))
        self.error = error


class LossKind(StrEnum):
    """Kind of reason why a lease was lost."""

    REFUSED = "refused"
    """The registry refuses to renew it: it expired or was ended, or another holder has the resource."""
    UNAUTHORIZED = "unauthorized"
    """The registry no longer accepts the holder's key."""
    EXPIRED = "expired"
    """The lease could not be renewed in time; its state in the registry is unknown."""
    STOPPED = "stopped"
    """The holder has stopped to renew it."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Reason why a lease was lost. As a text, it is for people."""

    kind: LossKind
    why: str
    """Reason, on one line. It may quote the registry: show it with care."""

    def __str__(self) -> str:
        return self.why


class LeaseKeeper:
    """Renews one lease until it is lost or no longer needed.

        keeper = LeaseKeeper.of_task(client.leases, granted)
        keeping = asyncio.create_task(keeper.run())
        …                                       # while keeper.is_held()
        keeper.stop_keeping()

    It renews at 60 % of the window, with a small random offset. A missing answer is no loss: the keeper tries
    again until the deadline, and repeats a renewal that may have been executed. The same applies to a request
    that fails with an unexpected error. A refusal is an immediate loss.

    `deadline_s` is that of the grant, `window_s` the duration of the lease after each renewal. Work that
    takes `grace_s` to end is notified of a loss so long before the deadline, or a fifth of the window before
    it. `renewed` receives each new deadline.
    """

    def __init__(
        self,
        leases: RegistryLeases,
        lease_id: str,
        *,
        fencing_token: int,
        deadline_s: float,
        window_s: float = TTL_SECONDS,
        incarnation: int | None = None,
        grace_s: float = 0.0,
        renewed: Callable[[float], None] | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._leases = leases
        self._lease_id = lease_id
        self._fencing_token = fencing_token
        self._window_s = window_s
        self._incarnation = incarnation
        self._grace_s = grace_s
        self._renewed = renewed
        self._chance = chance
        self._deadline_s = deadline_s
        # A grant that arrives when a renewal is due leaves too little time for that renewal.
        self._is_late = deadline_s - boot_clock.now_s() < window_s * (1.0 - RENEW_RATIO)
        self._is_known = asyncio.Event()
        self._has_ended = asyncio.Event()
        self._is_doubted = asyncio.Event()
        self._loss: Loss | None = None

    @classmethod
    def of_task(
        cls,
        leases: RegistryLeases,
        granted: GrantedTask,
        *,
        incarnation: int | None = None,
        grace_s: float = 0.0,
        renewed: Callable[[float], None] | None = None,
        chance: Callable[[], float] = random.random,
    ) -> Self:
        """Return the keeper for a task that was just granted."""
        lease = granted.lease
        return cls(
            leases,
            lease.lease_id,
            fencing_token=lease.fencing_token,
            deadline_s=granted.deadline_s,
            window_s=granted.window_s,
            incarnation=incarnation,
            grace_s=grace_s,
            renewed=renewed,
            chance=chance,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._lease_id}>"

    @property
    def deadline_s(self) -> float:
        """Time of `boot_clock` at which work must have stopped, unless the lease is renewed."""
        return self._deadline_s

    @property
    def loss(self) -> Loss | None:
        """Reason for the loss; None until the lease is known to be lost."""
        return self._loss

    def is_held(self) -> bool:
        """Return whether the holder may work now: the lease is not lost, and its deadline is not over."""
        return self._loss is None and boot_clock.now_s() < self._deadline_s

    async def wait_until_held(self) -> bool:
        """Wait until the lease is certainly held; return False if it is lost instead.

        The answer to a claim may be so late that the lease has expired by the holder's count, or must be
        renewed at once. Then the first renewal decides. Needs `run` in parallel.
        """
        while (self._is_late or not self.is_held()) and self._loss is None:
            self._is_known.clear()
            await self._is_known.wait()
        return self._loss is None

    async def wait_lost(self) -> Loss:
        """Wait until the lease is lost, and return the reason."""
        await self._has_ended.wait()
        assert self._loss is not None  # noqa: S101 - what ends it says why
        return self._loss

    def stop_keeping(self) -> None:
        """Stop renewing: the work has ended, or the lease was released."""
        self._lose(LossKind.STOPPED, "it was let go")

    def renew_now(self) -> None:
        """Renew the lease at once, as the registry may have ended it. Needs `run` in parallel."""
        self._is_doubted.set()

    async def run(self) -> None:
        """Renew the lease until it is lost or `stop_keeping` is called.

        An unexpected error outside a request loses it at once, and is logged: the work must not continue
        without a lease.
        """
        give_up_s = self._first_give_up_s()
        if self._is_late:
            self._is_doubted.set()
        try:
            while self._loss is None:
                requested_at_s = self._deadline_s - self._window_s
                await self._wait_uncertain_until(
                    renewal_due_s(requested_at_s, self._window_s, self._chance())
                )
                await self._renew(give_up_s)
                give_up_s = self._notice_at_s()
        except Exception as error:  # noqa: BLE001 - whoever works under it must hear of its loss
            _log.exception(
                "lease %s counts as lost: its renewal ended with an unexpected error", self._lease_id
            )
            self._lose(LossKind.EXPIRED, f"the lease cannot be renewed: {error_line(error)}")
        finally:
            self._lose(LossKind.STOPPED, "its renewal has ended")

    def _first_give_up_s(self) -> float:
        if not self._is_late:
            return self._notice_at_s()
        # The work has not begun: the first renewal may end after the deadline.
        return boot_clock.now_s() + self._window_s * (1.0 - RENEW_RATIO)

    def _notice_at_s(self) -> float:
        return notice_at_s(self._deadline_s, self._window_s, self._grace_s)

    async def _renew(self, give_up_s: float) -> None:
        """Renew it, or lose it."""
        failures, text = 0, ""
        while self._loss is None:
            if boot_clock.now_s() >= give_up_s:
                self._lose(LossKind.EXPIRED, f"the lease could not be renewed before its deadline{text}")
                return
            error = await self._try(give_up_s)
            if error is None:
                if failures:
                    _log.warning("lease %s is renewed: the registry answers again", self._lease_id)
                return
            if is_final(error):
                is_of_key = isinstance(error, NotAuthorized | NotPermitted)
                self._lose(LossKind.UNAUTHORIZED if is_of_key else LossKind.REFUSED, _refused(error))
                return
            failures += 1
            if not text or not isinstance(error, _CutOff):
                # An earlier answer is more informative than a final failure.
                text = f"; {error}"
            if failures == 1:
                _log.warning(
                    "lease %s could not be renewed, and is tried again: %s",
                    self._lease_id,
                    error,
                    exc_info=error.error if isinstance(error, _Unexpected) else None,
                )
            due_s = next_try_s(boot_clock.now_s(), give_up_s, failures, self._chance(), error.retry_after_s)
            await self._wait_until(min(due_s, give_up_s))

    async def _try(self, give_up_s: float) -> RegistryError | None:
        """Send one request; return the obstacle, if any."""
        try:
            async with boot_clock.timeout_at(try_ends_s(boot_clock.now_s(), give_up_s)):
                renewed = await self._leases.renew(
                    self._lease_id,
                    fencing_token=self._fencing_token,
                    ttl_seconds=self._window_s,
                    incarnation=self._incarnation,
                )
        except TimeoutError:
            return _CutOff("no answer in time")
        except RegistryError as error:
            return error
        except Exception as error:  # noqa: BLE001 - for example, the key file cannot be opened now
            return _Unexpected(error)
        self._deadline_s = renewed.deadline_s
        self._is_late = False
        self._is_known.set()
        if self._renewed is not None and self._loss is None:
            self._renewed(self._deadline_s)
        return None

    async def _wait_uncertain_until(self, due_s: float) -> None:
        with suppress(TimeoutError):
            async with boot_clock.timeout_at(due_s):
                await self._is_doubted.wait()
        self._is_doubted.clear()

    async def _wait_until(self, due_s: float) -> None:
        with suppress(TimeoutError):
            async with boot_clock.timeout_at(due_s):
                await self._has_ended.wait()

    def _lose(self, kind: LossKind, why: str) -> None:
        """Note the loss; the first one counts."""
        if self._loss is None:
            self._loss = Loss(kind, why)
            self._has_ended.set()
            self._is_doubted.set()
            self._is_known.set()


def _refused(error: RegistryError) -> str:
    """Return why a lease is not renewed, as a text for people."""
    if error.code == "stale_token":
        return "another holder has acquired it meanwhile"
    return _ENDED.get(str(error.details.get("end_reason")), str(error))
