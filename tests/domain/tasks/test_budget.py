import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pydantic import ValidationError
from pydantic_core import from_json
from tests.support.properties import examples

from lifesign.domain.errors import BudgetExceeded, InvalidRequest
from lifesign.domain.tasks.budget import (
    LARGEST,
    MAX_TOKENS,
    MAX_USD,
    MICRO_USD,
    NO_AMOUNT,
    Amount,
    Budget,
    ChildCharge,
    RequestedAmount,
    amount_record,
    budget_record,
)

AMOUNTS = st.builds(Amount, st.integers(0, 20), st.integers(0, 20))
PURSE = Budget(envelope=Amount(100, 1_500_000))


def finish(parent: Budget, child: Budget, carved: Amount) -> Budget:
    """Return the parent's budget after its child has finished."""
    before = ChildCharge(settled=NO_AMOUNT, delegated=carved)
    return parent.recharge(before, child.charge_when_finished(carved))


def test_unused_part_of_a_reservation_returns_to_the_budget() -> None:
    reserved = PURSE.reserve(Amount(60, 1_000_000))
    assert reserved.room == Amount(40, 500_000)
    settled = reserved.settle(Amount(60, 1_000_000), Amount(10, 250_000))
    assert (settled.room, settled.reserved) == (Amount(90, 1_250_000), NO_AMOUNT)


@pytest.mark.parametrize("amount", [Amount(101, 0), Amount(0, 1_500_001)])
def test_call_beyond_either_budget_is_refused(amount: Amount) -> None:
    with pytest.raises(BudgetExceeded, match="left"):
        PURSE.reserve(amount)
    with pytest.raises(BudgetExceeded):
        PURSE.carve(amount)


def test_overspent_call_is_reported_and_the_envelope_stays() -> None:
    settled = PURSE.reserve(Amount(90, 0)).settle(Amount(90, 0), Amount(130, 0))
    assert (settled.settled, settled.overrun) == (Amount(100, 0), Amount(30, 0))
    assert settled.room == Amount(0, 1_500_000)


@pytest.mark.parametrize("cost", [Amount(101, 0), Amount(0, 1_500_001)])
def test_overrun_of_one_kind_refuses_calls_of_the_other_until_the_budget_is_topped_up(cost: Amount) -> None:
    asked = Amount(0, 1) if cost.tokens else Amount(1, 0)
    overspent = PURSE.reserve(asked).settle(asked, cost)
    with pytest.raises(BudgetExceeded, match="overrun"):
        overspent.reserve(asked)
    assert overspent.reserve(NO_AMOUNT) == overspent
    assert overspent.top_up(Amount(1, 1)).reserve(asked).reserved == asked
    used_up = PURSE.reserve(asked).settle(asked, cost.at_most(PURSE.envelope))
    assert used_up.reserve(asked).reserved == asked


def test_overrun_is_paid_from_what_comes_back_or_is_added() -> None:
    carved = Amount(30, 0)
    overspent = PURSE.carve(carved).settle(NO_AMOUNT, Amount(90, 0))
    assert (overspent.settled, overspent.overrun) == (Amount(70, 0), Amount(20, 0))
    returned = finish(overspent, Budget(envelope=carved), carved)
    topped_up = overspent.top_up(carved)
    for paid in (returned, topped_up):
        assert (paid.settled, paid.overrun, paid.room.tokens) == (Amount(90, 0), NO_AMOUNT, 10)
    released = PURSE.reserve(carved).settle(NO_AMOUNT, Amount(90, 0)).release(carved)
    assert (released.settled, released.overrun) == (Amount(90, 0), NO_AMOUNT)


def test_child_returns_its_remaining_budget() -> None:
    carved = Amount(40, 500_000)
    child = Budget(envelope=carved).reserve(Amount(15, 0)).settle(Amount(15, 0), Amount(15, 0))
    parent = finish(PURSE.carve(carved), child, carved)
    assert (parent.settled, parent.delegated) == (Amount(15, 0), NO_AMOUNT)


def test_top_up_of_a_child_budget_is_not_charged_to_the_parent() -> None:
    carved = Amount(40, 0)
    child = Budget(envelope=carved).top_up(Amount(60, 0)).reserve(Amount(90, 0))
    child = child.settle(Amount(90, 0), Amount(90, 0))
    assert finish(PURSE.carve(carved), child, carved).settled == carved


def test_finished_child_keeps_what_its_own_children_may_spend() -> None:
    carved = Amount(40, 0)
    child = Budget(envelope=carved).carve(Amount(30, 0))
    parent = finish(PURSE.carve(carved), child, carved)
    assert (parent.settled, parent.delegated) == (NO_AMOUNT, Amount(30, 0))
    later = finish(child, Budget(envelope=Amount(30, 0), settled=Amount(5, 0)), Amount(30, 0))
    parent = parent.recharge(child.charge_when_finished(carved), later.charge_when_finished(carved))
    assert (parent.settled, parent.delegated) == (Amount(5, 0), NO_AMOUNT)
    latest = replace(later, settled=Amount(8, 0))
    parent = parent.recharge(later.charge_when_finished(carved), latest.charge_when_finished(carved))
    assert parent.settled == Amount(8, 0)


def test_finished_child_is_charged_at_most_what_it_got() -> None:
    carved = Amount(40, 0)
    child = (
        Budget(envelope=carved).top_up(Amount(60, 0)).carve(Amount(50, 0)).settle(NO_AMOUNT, Amount(30, 0))
    )
    assert child.charge_when_finished(carved) == ChildCharge(settled=Amount(30, 0), delegated=Amount(10, 0))


def test_top_up_above_the_largest_budget_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        PURSE.top_up(LARGEST)


class Purse(RuleBasedStateMachine):
    """A parent and its children, spending in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(envelope=Amount(50, 50))
        self.calls: list[Amount] = []
        self.children: list[tuple[Budget, Amount]] = []
        self.paid = NO_AMOUNT

    @rule(amount=AMOUNTS)
    def reserve(self, amount: Amount) -> None:
        before = self.budget
        try:
            self.budget = before.reserve(amount)
        except BudgetExceeded:
            assert not amount.fits(before.room) or before.overrun != NO_AMOUNT
        else:
            self.calls.append(amount)

    @rule(cost=AMOUNTS)
    def settle(self, cost: Amount) -> None:
        if self.calls:
            self.budget = self.budget.settle(self.calls.pop(0), cost)
            self.paid += cost

    @rule()
    def release(self) -> None:
        if self.calls:
            self.budget = self.budget.release(self.calls.pop())

    @rule(amount=AMOUNTS)
    def delegate(self, amount: Amount) -> None:
        if amount.fits(self.budget.room):
            self.budget = self.budget.carve(amount)
            self.children.append((Budget(envelope=amount), amount))

    @rule(cost=AMOUNTS, added=AMOUNTS)
    def a_child_spends_and_ends(self, cost: Amount, added: Amount) -> None:
        if self.children:
            child, carved = self.children.pop()
            child = child.top_up(added).settle(NO_AMOUNT, cost)
            self.budget = finish(self.budget, child, carved)
            self.paid += child.settled.at_most(carved)

    @rule(amount=AMOUNTS)
    def top_up(self, amount: Amount) -> None:
        self.budget = self.budget.top_up(amount)

    @invariant()
    def nothing_is_promised_twice(self) -> None:
        assert NO_AMOUNT.fits(self.budget.room)
        assert self.budget.overrun.at_most(self.budget.room) == NO_AMOUNT
        assert self.budget.reserved == sum(self.calls, NO_AMOUNT)
        assert self.budget.delegated == sum((carved for _, carved in self.children), NO_AMOUNT)

    @invariant()
    def spent_amount_is_reported(self) -> None:
        assert self.budget.settled + self.budget.overrun == self.paid


Purse.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=30)
TestPurse = Purse.TestCase


@given(st.integers(0, MAX_TOKENS), st.integers(0, MAX_USD * MICRO_USD))
def test_amount_is_unchanged_after_json(tokens: int, micro_usd: int) -> None:
    amount = Amount(tokens, micro_usd)
    spend = RequestedAmount.model_validate(from_json(amount_record(amount).model_dump_json()))
    assert spend.amount() == amount


@pytest.mark.parametrize(("usd", "micro_usd"), [
    (1.5, 1_500_000), (0.1, 100_000), (0.000001, 1), (0, 0), (3, 3_000_000), (0.29, 290_000),
])  # fmt: skip
def test_dollars_are_read_to_the_sixth_decimal(usd: float, micro_usd: int) -> None:
    assert RequestedAmount(usd=usd).amount().micro_usd == micro_usd


def test_amount_is_bounded_and_empty_by_default() -> None:
    assert RequestedAmount().amount() == NO_AMOUNT
    assert RequestedAmount(tokens=10**12, usd=10**8).amount() == Amount(10**12, 10**14) == LARGEST


@pytest.mark.parametrize("given", [
    {"usd": 0.0000001}, {"usd": -0.01}, {"usd": math.nan}, {"usd": math.inf}, {"usd": 1e30},
    {"usd": "1.5"}, {"usd": True}, {"tokens": -1}, {"tokens": 1.5}, {"tokens": 10**12 + 1}, {"tokens": True},
    {"usd": 10**8 + 1}, {"eur": 1},
])  # fmt: skip
def test_invalid_amount_is_refused_without_being_quoted(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        RequestedAmount.model_validate(given)
    assert "input_value" not in str(refused.value)


def test_a_budget_is_shown_with_what_is_left() -> None:
    shown = budget_record(PURSE.reserve(Amount(60, 250_000)).carve(Amount(1, 1))).model_dump()
    assert shown["available"] == {"tokens": 39, "usd": 1.249999}
    assert shown["delegated"] == {"tokens": 1, "usd": 0.000001}
