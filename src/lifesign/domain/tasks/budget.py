"""Budget of a task (lease protocol, "Tool calls that cost money"; protocol 6.9).

Amounts are whole numbers, tokens and micro-dollars: sums are exact. A call reserves its maximum cost, is
made, and settles its actual cost; the rest is returned. Nothing is promised twice: settled, reserved and
delegated amounts never exceed the budget.
"""

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import BudgetExceeded, InvalidRequest
from lifesign.domain.health.document import INTEGRAL_FLOAT

MICRO_USD = 1_000_000
"""Micro-dollars in one dollar."""
MAX_TOKENS = 10**12
"""Maximum of one budget."""
MAX_USD = 10**8
"""Maximum of one budget: with six decimals still exact as a JSON number."""
_DECIMALS = 6


@dataclass(frozen=True, slots=True)
class Amount:
    """Number of tokens and amount of money. Each has its own limit."""

    tokens: int = 0
    micro_usd: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.tokens + other.tokens, self.micro_usd + other.micro_usd)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.tokens - other.tokens, self.micro_usd - other.micro_usd)

    def fits(self, room: "Amount") -> bool:
        """Return whether `room` is large enough for this amount, in tokens and in money."""
        return self.tokens <= room.tokens and self.micro_usd <= room.micro_usd

    def at_most(self, most: "Amount") -> "Amount":
        """Return the amount, limited to `most`: tokens and money separately."""
        return Amount(min(self.tokens, most.tokens), min(self.micro_usd, most.micro_usd))


NO_AMOUNT = Amount()
LARGEST = Amount(MAX_TOKENS, MAX_USD * MICRO_USD)


@dataclass(frozen=True, slots=True)
class ChildCharge:
    """How much a child task uses of its parent's budget."""

    settled: Amount
    delegated: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of what a task's tool calls may cost, and how much of them is used."""

    envelope: Amount = NO_AMOUNT
    settled: Amount = NO_AMOUNT
    """Spent: by calls, and by finished children."""
    reserved: Amount = NO_AMOUNT
    """Part of the budget that is reserved for running calls."""
    delegated: Amount = NO_AMOUNT
    """Set aside for children: for a finished one, only what its own unfinished children may still spend."""
    overrun: Amount = NO_AMOUNT
    """Costs beyond the reservation and the remaining budget.

    Not in `settled`: they must be visible, and buy nothing. What the budget gets back or gets added pays them
    first, so that nothing is left while there is an overrun.
    """

    @property
    def room(self) -> Amount:
        """Amount that is left: not spent, reserved, or set aside for child tasks."""
        return self.envelope - self.settled - self.reserved - self.delegated

    def reserve(self, amount: Amount) -> "Budget":
        """Reserve the maximum cost of a call; BudgetExceeded if not so much is left.

        BudgetExceeded too if there is an overrun in tokens or in money, unless the call is free: its actual
        cost can have a part that its maximum lacks.
        """
        self._check_room(amount)
        if NO_AMOUNT not in {amount, self.overrun}:
            raise BudgetExceeded(spend_of(amount), spend_of(self.room), spend_of(self.overrun))
        return replace(self, reserved=self.reserved + amount)

    def settle(self, reserved: Amount, cost: Amount) -> "Budget":
        """Replace a call's reservation by its actual cost.

        The cost was already spent, so that it is never refused; the part that does not fit is `overrun`.
        """
        return replace(self, reserved=self.reserved - reserved, overrun=self.overrun + cost).pay_overrun()

    def release(self, reserved: Amount) -> "Budget":
        """Release the reservation of a call that failed, or whose holder lost the task."""
        return replace(self, reserved=self.reserved - reserved).pay_overrun()

    def carve(self, envelope: Amount) -> "Budget":
        """Set an amount aside for a child task; BudgetExceeded if not so much is left."""
        self._check_room(envelope)
        return replace(self, delegated=self.delegated + envelope)

    def charge_when_finished(self, carved: Amount) -> ChildCharge:
        """Return how much of its parent's budget a finished child uses, of the `carved` amount.

        A child that was topped up may have spent more than the part that it got from its parent. What its own
        unfinished children may still spend stays charged.
        """
        settled = self.settled.at_most(carved)
        return ChildCharge(settled, (self.reserved + self.delegated).at_most(carved - settled))

    def recharge(self, before: ChildCharge, after: ChildCharge) -> "Budget":
        """Replace what a child uses of this budget by a later figure; the difference is available again."""
        return replace(
            self,
            settled=self.settled - before.settled + after.settled,
            delegated=self.delegated - before.delegated + after.delegated,
        ).pay_overrun()

    def top_up(self, amount: Amount) -> "Budget":
        """Increase the budget's limits; InvalidRequest if they would become too large."""
        if not amount.fits(LARGEST - self.envelope):
            expected = f"expected a budget of at most {MAX_TOKENS} tokens and {MAX_USD} USD"
            raise InvalidRequest([Finding("too_large", "/add", expected)])
        return replace(self, envelope=self.envelope + amount).pay_overrun()

    def pay_overrun(self) -> "Budget":
        """Move as much of the overrun into `settled` as there is room for."""
        paid = self.overrun.at_most(self.room)
        return replace(self, settled=self.settled + paid, overrun=self.overrun - paid)

    def _check_room(self, amount: Amount) -> None:
        if not amount.fits(self.room):
            raise BudgetExceeded(spend_of(amount), spend_of(self.room))


def _check_decimals(usd: float) -> float:
    # Decimal of the text: the intended 0.1, not the nearest double.
    if Decimal(repr(usd)) % Decimal(1).scaleb(-_DECIMALS):
        raise PydanticCustomError("too_fine", "expected at most {most} decimals", {"most": _DECIMALS})
    return usd


Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS, strict=True), INTEGRAL_FLOAT]
Usd = Annotated[
    float, Field(ge=0, le=MAX_USD, allow_inf_nan=False, strict=True), AfterValidator(_check_decimals)
]


class RequestedAmount(BaseModel):
    """An amount in a request: `{tokens, usd}`, with at most six decimals of dollars."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    tokens: Tokens = 0
    usd: Usd = 0

    def amount(self) -> Amount:
        """The same amount with money as a whole number of millionths of a dollar."""
        return Amount(self.tokens, int(Decimal(repr(self.usd)).scaleb(_DECIMALS)))


class AmountRecord(BaseModel):
    """An amount of tokens and money, in the form of the API."""

    tokens: int
    usd: float


class BudgetRecord(BaseModel):
    """A task's budget, in the form of the API."""

    envelope: AmountRecord
    settled: AmountRecord
    """Part of the budget that was spent by calls, and by child tasks that have ended."""
    reserved: AmountRecord
    """Part of the budget that is reserved for running calls."""
    delegated: AmountRecord
    """Part of the budget that was given to child tasks which have not ended."""
    overrun: AmountRecord
    """Costs beyond the remaining budget; not in `settled`."""
    available: AmountRecord


def spend_of(amount: Amount) -> dict[str, Any]:
    """Return an amount in the form of requests and events, without loss."""
    return {"tokens": amount.tokens, "usd": amount.micro_usd / MICRO_USD}


def amount_record(amount: Amount) -> AmountRecord:
    """Return an amount in the form of the API."""
    return AmountRecord(**spend_of(amount))


def budget_record(budget: Budget) -> BudgetRecord:
    """Return a budget in the form of the API."""
    return BudgetRecord(
        envelope=amount_record(budget.envelope),
        settled=amount_record(budget.settled),
        reserved=amount_record(budget.reserved),
        delegated=amount_record(budget.delegated),
        overrun=amount_record(budget.overrun),
        available=amount_record(budget.room),
    )
