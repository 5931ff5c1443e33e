"""Payment for a call (lease protocol, "Tool calls that cost money"; protocol 6.9).

Reserve, execute, settle. Every call makes a reservation, also a free one, so that the registry refuses a lost
task before anything is executed. The reservation of a call that was not executed is freed. An executed call
is settled at its actual cost, even if that is higher. A call with an unknown result is settled at its
reservation: otherwise an agent could get it for free, by ending, by killing the server, or by requesting more
than is returned.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

from mcp_types import SERVER_INFO_META_KEY, CallToolResult

from lifesign.adapter.tools.call_failures import CallNotExecuted, ResultWithheld
from lifesign.adapter.tools.proxy_context import ToolProxyContext
from lifesign.adapter.tools.tools_file import Price
from lifesign.client.registry_errors import RegistryError, is_final, may_have_been_executed
from lifesign.client.registry_tasks import HeldRun
from lifesign.domain.models.tasks import CallRecord
from lifesign.domain.tasks.budget import MAX_TOKENS, MAX_USD, NO_AMOUNT, RequestedAmount
from lifesign.mcp.answer import ERROR_KEY, failure
from lifesign.mcp.refusal_code import ToolRefusalCode
from lifesign.mcp.run_binding import refusal
from lifesign.mcp.tool_definition import ToolFailed

COST_KEY: Final = "lifesign/cost"
"""Member of a result's `_meta`: cost of the call."""
AVAILABLE_KEY: Final = "lifesign/available"
"""Member of a result's `_meta`: remaining budget."""
OVER_KEY: Final = "lifesign/overReserved"
"""Member of a result's `_meta`: present and true if the call cost more than its reservation."""
UNSETTLED_KEY: Final = "lifesign/unsettled"
"""Member of a result's `_meta`: present and true if the cost could not be reported to the registry yet."""
_OWN_KEYS: Final = frozenset(
    {COST_KEY, AVAILABLE_KEY, OVER_KEY, UNSETTLED_KEY, ERROR_KEY, SERVER_INFO_META_KEY}
)
RETRY_SECONDS: Final = 2.0
"""Interval of attempts to report a cost."""
CLOSE_SECONDS: Final = 3.0
"""Time for outstanding reports when the run has ended."""
MAX_UNREPORTED: Final = 1_000
"""Maximum number of calls whose cost is reported later. For further calls, the reservation stays until the
run ends.
"""

_SIX_DECIMALS: Final = Decimal("0.000001")
_log = logging.getLogger("lifesign.adapter.tools")


class Meter:
    """Reserves the cost of the tool calls of one run in the task's budget, and settles it after each call."""

    def __init__(self, held: ToolProxyContext) -> None:
        self._held = held
        self._unreported: set[asyncio.Task[None]] = set()
        self._outstanding: dict[str, RequestedAmount] = {}
        """Costs of executed calls that the registry has not recorded yet, by the id of the call."""
        self.paid_under_way = 0
        """Calls that have begun, and may cost something."""

    async def call(
        self, tool: str, price: Price, carry_out: Callable[[], Awaitable[CallToolResult]]
    ) -> CallToolResult:
        """Reserve the cost, execute the call with `carry_out`, and settle the cost.

        ToolFailed if a step fails. Cancelled only at the end of the run: the caller may have left, but the
        call costs the same.
        """
        is_paid = price.most().amount() != NO_AMOUNT
        self.paid_under_way += is_paid
        try:
            return await self._call(tool, price, carry_out)
        finally:
            self.paid_under_way -= is_paid

    async def _call(
        self, tool: str, price: Price, carry_out: Callable[[], Awaitable[CallToolResult]]
    ) -> CallToolResult:
        call_id, most = secrets.token_hex(16), price.most()
        await self._reserve(call_id, tool, most)
        if not self._held.is_held():
            # The registry took its time.
            await self._release(call_id)
            raise lease_lost()
        try:
            result = await carry_out()
        except CallNotExecuted:
            await self._release(call_id)
            raise
        except ToolFailed as error:
            cost = cost_of(price, error.answer if isinstance(error, ResultWithheld) else None)
            result = failure(_paid_for(error) if cost and cost.amount() != NO_AMOUNT else error)
        except BaseException:
            self._later(self._report_interrupted(call_id, tool, most))
            raise
        else:
            cost = cost_of(price, result)
            result = without_own_members(result)
        if cost is None:
            await self._release(call_id)
            return result
        return await self._settle(call_id, tool, most, result, cost)

    async def report_outstanding(self) -> int:
        """Report outstanding costs now; return the number of calls whose cost is still not recorded."""
        await asyncio.gather(*(self._try_to_report(*one) for one in list(self._outstanding.items())))
        return len(self._outstanding)

    async def close(self) -> None:
        """Wait a short time until the costs of finished calls are reported to the registry."""
        if self._unreported:
            await asyncio.wait(self._unreported, timeout=CLOSE_SECONDS)
        for reporting in self._unreported:
            reporting.cancel()
        await asyncio.gather(*self._unreported, return_exceptions=True)

    async def _reserve(self, call_id: str, tool: str, most: RequestedAmount) -> None:
        try:
            await self._held.registry.tasks.reserve_call(self._run, call_id, tool, most)
        except RegistryError as error:
            failed = refusal(error)
            if failed.code == ToolRefusalCode.BUDGET_EXCEEDED:
                self._held.budget_gone()
            elif error.may_be_repeat or may_have_been_executed(error):
                # The amount may be reserved nevertheless.
                self._later(self._release(call_id))
            raise failed from None

    async def _release(self, call_id: str) -> None:
        try:
            await self._held.registry.tasks.release_call(self._run, call_id)
        except RegistryError as error:
            _log.info(
                (
                    "call %s: could not release its reservation, which the registry releases when the run "
                    "ends: %s"
                ),
                call_id,
                error,
            )

    async def _settle(
        self, call_id: str, tool: str, most: RequestedAmount, result: CallToolResult, cost: RequestedAmount
    ) -> CallToolResult:
        meta: dict[str, Any] = {COST_KEY: cost.model_dump(mode="json")}
        if not cost.amount().fits(most.amount()):
            _log.warning("a call of tool %s cost more than the maximum of the tool's price: %s", tool, cost)
            meta[OVER_KEY] = True
        try:
            reported = await self._report(call_id, cost)
        except asyncio.CancelledError:
            self._later(self._report_interrupted(call_id, tool, cost))
            raise
        except RegistryError as error:
            if is_final(error):
                failed = refusal(error)
                if failed.code == ToolRefusalCode.STALE_TOKEN:
                    raise ToolFailed(
                        f"it was executed meanwhile; {error}", code=ToolRefusalCode.STALE_TOKEN
                    ) from None
                raise failed from None
            # It was executed, and its cost stays reserved: it cannot be spent twice.
            _log.warning(
                "the cost of a call of tool %s could not be reported, and is reported again: %s", tool, error
            )
            if self._later(self._report_until_recorded(call_id, cost)):
                # Not in the task, which begins later: the run may be submitted before.
                self._outstanding[call_id] = cost
            meta[UNSETTLED_KEY] = True
        else:
            meta[AVAILABLE_KEY] = reported.available.model_dump(mode="json")
        return result.model_copy(update={"meta": {**(result.meta or {}), **meta}})

    async def _report(self, call_id: str, cost: RequestedAmount) -> CallRecord:
        return await self._held.registry.tasks.settle_call(self._run, call_id, cost)

    async def _report_interrupted(self, call_id: str, tool: str, cost: RequestedAmount) -> None:
        try:
            await self._report(call_id, cost)
        except RegistryError as error:
            _log.warning(
                (
                    "the run ended during a call of tool %s, and the cost of the call could not be "
                    "reported: %s"
                ),
                tool,
                error,
            )

    async def _report_until_recorded(self, call_id: str, cost: RequestedAmount) -> None:
        try:
            while self._held.is_held() and call_id in self._outstanding:
                await asyncio.sleep(RETRY_SECONDS)
                await self._try_to_report(call_id, cost)
        finally:
            self._outstanding.pop(call_id, None)

    async def _try_to_report(self, call_id: str, cost: RequestedAmount) -> None:
        try:
            await self._report(call_id, cost)
        except RegistryError as error:
            if not is_final(error):
                return
            if call_id in self._outstanding:
                _log.warning("the registry refused to record the cost of a call: %s", error)
        self._outstanding.pop(call_id, None)

    def _later(self, function: Any) -> bool:
        """Begin a report to the registry; return False if too many are in progress."""
        if len(self._unreported) >= MAX_UNREPORTED:
            function.close()
            return False
        reporting = asyncio.ensure_future(function)
        self._unreported.add(reporting)
        reporting.add_done_callback(self._unreported.discard)
        return True

    @property
    def _run(self) -> HeldRun:
        return self._held.run


def cost_of(price: Price, answer: CallToolResult | None) -> RequestedAmount | None:
    """Return the cost of a call that was sent; None if the server says that it failed and names no cost.

    Without an answer, the call may have been executed.
    """
    reported = None if answer is None else reported_cost(price, answer)
    if reported is None and answer is not None and answer.is_error:
        return None
    return reported or price.most()


def reported_cost(price: Price, result: CallToolResult) -> RequestedAmount | None:
    """Return the cost that a server's answer reports; None if it reports none, or an implausible one.

    A part of a micro-dollar counts as a whole one.
    """
    if price.cost_in is None:
        return None
    reported = (result.meta or {}).get(price.cost_in)
    if not isinstance(reported, dict):
        return None
    tokens, usd = reported.get("tokens", 0), reported.get("usd", 0)
    if isinstance(tokens, bool) or isinstance(usd, bool) or not isinstance(tokens, int):
        return None
    # Also for values that are no numbers, or beyond a double.
    if not isinstance(usd, int | float) or not (0 <= tokens <= MAX_TOKENS and 0 <= usd <= MAX_USD):
        return None
    return RequestedAmount(
        tokens=tokens, usd=float(Decimal(repr(usd)).quantize(_SIX_DECIMALS, ROUND_CEILING))
    )


def without_own_members(result: CallToolResult) -> CallToolResult:
    """Return a server's result without members of `_meta` with which only the proxy informs the agent."""
    if result.meta is None or _OWN_KEYS.isdisjoint(result.meta):
        return result
    kept = {name: value for name, value in result.meta.items() if name not in _OWN_KEYS}
    return result.model_copy(update={"meta": kept})


def _paid_for(error: ToolFailed) -> ToolFailed:
    """Return the same failure, with the fact that it was charged."""
    text = str(error).removeprefix(f"{error.code}: ")
    return ToolFailed(f"{text}; the call is paid for", code=error.code)


def lease_lost() -> ToolFailed:
    """Return the error with which every tool call is answered after the run has lost its lease."""
    what = "this run has lost its task: no call is executed any more. Stop working on it; nothing counts"
    return ToolFailed(what, code=ToolRefusalCode.LEASE_LOST)
