from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lifesign.domain.errors import InvalidResource, TokensExhausted
from lifesign.domain.lifecycle.heartbeat_timeout import MAX_CLOCK_DIFFERENCE_S
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.tasks.lease import (
    COUNTERS_PER_MS,
    MAX_EPOCH,
    Claim,
    EndReason,
    Grant,
    Refusal,
    RefusalCode,
    Release,
    Renewal,
    ResourceKind,
    check_write,
    decide_acquire,
    decide_release,
    decide_renew,
    ended,
    fencing_token,
    for_stranger,
    intent_scope_resource,
    is_end_uncertain,
    is_unexpired,
    kind_of,
    next_token,
    raised_epoch,
    raised_floor,
    read_resource,
    read_window_s,
    shard_resource,
)
from lifesign.errors import InvalidValue

FREE = Claim(resource="task:t1")
HELD = Claim(
    resource="task:t1",
    lease_id="lease_1",
    holder="agent_a",
    holder_incarnation=1,
    token=7,
    acquired_at_s=1000.0,
    expires_at_s=1300.0,
)
RELEASED = replace(HELD, ended_at_s=1100.0, end_reason=EndReason.RELEASED)
EPOCHS = st.integers(0, MAX_EPOCH)
COUNTERS = st.integers(1, 2**32 - 1)
SALTS = st.integers(0, COUNTERS_PER_MS - 1)


@given(st.floats(1, 86_400), st.floats(0, 10**9))
def test_validity_period_survives_rounding_to_milliseconds(window_s: float, began_s: float) -> None:
    reported_s = (int((began_s + window_s) * 1_000) - int(began_s * 1_000)) / 1_000
    read_s = read_window_s(reported_s)
    assert read_s is not None
    assert 1 <= read_s <= 86_400
    assert read_s == pytest.approx(window_s, abs=0.002)


@given(st.floats(max_value=0.99) | st.floats(min_value=86_400.01))
def test_impossible_validity_period_is_refused(reported_s: float) -> None:
    assert read_window_s(reported_s) is None


def code_of(result: object) -> RefusalCode:
    assert isinstance(result, Refusal)
    return result.code


# Names of resources


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("intent:i1/state", ResourceKind.INTENT_SCOPE),
        ("intent:i1/state/part", ResourceKind.INTENT_SCOPE),
        ("task:task_a1b2c3", ResourceKind.TASK),
        ("shard:0", ResourceKind.SHARD),
        ("shard:1023", ResourceKind.SHARD),
        ("deploy", ResourceKind.OTHER),
        ("repository:main~1", ResourceKind.OTHER),
        ("!", ResourceKind.OTHER),
        ("x" * 512, ResourceKind.OTHER),
    ],
)
def test_a_resource_is_of_the_kind_that_its_name_begins_with(text: str, kind: ResourceKind) -> None:
    assert read_resource(text) is kind


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "a b", "a\nb", "a\n", "a'b", 'a"b', "a`b", "a\x00", "a\x7f", "\xe9t\xe9", "x" * 513,
        "task:", "intent:i1", "intent:i1/", "intent:/scope", "shard:", "shard:x", "shard:-1", "shard:01",
        "shard:1.0", "shard:1/2", "shard:\u0661",
    ],
)  # fmt: skip
def test_a_name_that_could_be_misread_or_mean_another_resource_is_refused(text: str) -> None:
    with pytest.raises(InvalidResource):
        read_resource(text)


@given(st.text(max_size=5))
def test_only_printable_ascii_without_quotes_makes_a_name(text: str) -> None:
    allowed = all("!" <= character <= "~" and character not in "\"'`" for character in text)
    has_dots = not {".", ".."}.isdisjoint(text.split("/"))
    is_good = bool(text) and allowed and not has_dots
    with nullcontext() if is_good else pytest.raises(InvalidResource):
        read_resource(text)


@pytest.mark.parametrize(
    "text",
    [".", "..", "a/..", "../a", "a/./b", "a/../b", "intent:./s", "intent:../s", "intent:i/.", "intent:i/..",
     "intent:i/a/../b", "task:.", "task:..", "task:a/..", "%2e", "a/%2E%2e/b", "intent:x/%2e%2e",
     "intent:%2e/s", "task:.%2E"],
)  # fmt: skip
def test_resource_with_a_dot_or_dot_dot_segment_is_refused(text: str) -> None:
    with pytest.raises(InvalidResource, match="between slashes"):
        read_resource(text)


@pytest.mark.parametrize(
    "text",
    [
        "...",
        "a.b/..c/d..",
        ".well-known/x",
        "intent:.i/.s",
        "v1:../x",
        "a:.",
        "%2e.x",
        "a/%252e%252e",
        "a/..%2fb",
    ],
)
def test_dots_within_a_longer_segment_are_accepted(text: str) -> None:
    assert read_resource(text)


@given(st.text("abint:/.", min_size=1, max_size=12))
def test_valid_resource_keeps_its_kind_when_stored(text: str) -> None:
    try:
        kind = read_resource(text)
    except InvalidResource:
        # It was granted under laxer rules and must still be readable.
        kind_of(text)
    else:
        assert kind_of(text) is kind


@given(st.text("ab/:", max_size=4), st.text("ab/:", max_size=4))
def test_two_intent_scopes_never_share_a_resource(intent_id: str, scope: str) -> None:
    if not intent_id or not scope or "/" in intent_id:
        with pytest.raises(InvalidResource):
            intent_scope_resource(intent_id, scope)
        return
    resource = intent_scope_resource(intent_id, scope)
    assert read_resource(resource) is ResourceKind.INTENT_SCOPE
    assert resource.removeprefix("intent:").split("/", 1) == [intent_id, scope]


def test_shards_are_named_by_their_number() -> None:
    assert shard_resource(7) == "shard:7"


# Fencing tokens


def test_the_first_token_of_the_first_epoch_is_one() -> None:
    assert next_token(0, 0) == 1
    assert next_token(1, 0) == 2


@given(EPOCHS, COUNTERS, EPOCHS, COUNTERS)
def test_tokens_are_ordered_by_epoch_and_then_by_counter(e1: int, c1: int, e2: int, c2: int) -> None:
    first, second = fencing_token(e1, c1), fencing_token(e2, c2)
    assert (first < second) is ((e1, c1) < (e2, c2))
    assert 0 < first < 2**63


@given(EPOCHS, st.integers(1, 2**32 - 2), EPOCHS)
def test_next_token_is_higher_for_any_epoch(last_epoch: int, counter: int, epoch: int) -> None:
    last = fencing_token(last_epoch, counter)
    assert next_token(last, epoch * 2**32) > last
    assert next_token(last, epoch * 2**32) >= fencing_token(epoch, 1)


def test_a_raised_epoch_makes_room_where_the_counter_is_used_up() -> None:
    last = fencing_token(3, 2**32 - 1)
    with pytest.raises(TokensExhausted, match="epoch 3"):
        next_token(last, 3 * 2**32)
    assert next_token(last, 4 * 2**32 + 6) == fencing_token(4, 7)


def test_the_highest_token_fits_into_a_signed_64_bit_integer() -> None:
    assert fencing_token(MAX_EPOCH, 2**32 - 1) == 2**63 - 1


@pytest.mark.parametrize("epoch", [-1, 2**31])
def test_an_epoch_that_does_not_fit_is_refused(epoch: int) -> None:
    with pytest.raises(InvalidValue, match="epoch"):
        fencing_token(epoch, 1)


def test_zero_is_no_token() -> None:
    with pytest.raises(TokensExhausted):
        fencing_token(0, 0)


# Acquire


@pytest.mark.parametrize("claim", [None, FREE])
def test_free_resource_is_granted_for_the_requested_time(claim: Claim | None) -> None:
    granted = decide_acquire(claim, Status.ACTIVE, token_floor=0, now_s=1000.0, ttl_seconds=60)
    assert granted == Grant(token=1, expires_at_s=1060.0)
    assert decide_acquire(claim, Status.ACTIVE, token_floor=0, now_s=1000.0) == Grant(1, 1300.0)


def test_leased_resource_is_refused_with_its_holder() -> None:
    decision = decide_acquire(HELD, Status.ACTIVE, token_floor=0, now_s=1299.9)
    assert decision == Refusal(RefusalCode.LEASE_HELD, HELD)


@pytest.mark.parametrize("claim", [HELD, RELEASED])
def test_counter_continues_after_expiry_and_release(claim: Claim) -> None:
    granted = decide_acquire(claim, Status.ACTIVE, token_floor=0, now_s=1300.0)
    assert isinstance(granted, Grant)
    assert granted.token == 8


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (None, None),
        (Status.ACTIVE, None),
        (Status.UNHEALTHY, None),
        (Status.DRAINING, RefusalCode.AGENT_DRAINING),
        (Status.DEAD, RefusalCode.AGENT_GONE),
        (Status.DEREGISTERED, RefusalCode.AGENT_GONE),
        (Status.REGISTERING, RefusalCode.AGENT_GONE),
    ],
)
def test_leaving_agent_gets_no_new_lease(status: Status | None, code: RefusalCode | None) -> None:
    decision = decide_acquire(None, status, token_floor=0, now_s=1000.0)
    assert (decision.code if isinstance(decision, Refusal) else None) is code


@pytest.mark.parametrize("ttl_seconds", [0, 0.999, -1, 86_400.5, float("inf"), float("nan")])
def test_lease_duration_is_bounded_below_and_above(ttl_seconds: float) -> None:
    with pytest.raises(InvalidValue, match="ttl_seconds"):
        decide_acquire(None, None, token_floor=0, now_s=0.0, ttl_seconds=ttl_seconds)
    with pytest.raises(InvalidValue, match="ttl_seconds"):
        decide_renew(HELD, "lease_1", holder="agent_a", token=7, now_s=1100.0, ttl_seconds=ttl_seconds)


@pytest.mark.parametrize("ttl_seconds", [1, 86_400])
def test_shortest_and_longest_lease_are_granted(ttl_seconds: int) -> None:
    assert decide_acquire(None, None, token_floor=0, now_s=5.0, ttl_seconds=ttl_seconds) == Grant(
        1, 5.0 + ttl_seconds
    )


# Renew


def test_renewed_lease_counts_from_the_time_of_renewal() -> None:
    renewed = decide_renew(HELD, "lease_1", holder="agent_a", token=7, now_s=1180.0, ttl_seconds=300)
    assert renewed == Renewal(1480.0)


@pytest.mark.parametrize(
    ("claim", "lease_id", "holder", "token", "now_s", "code"),
    [
        (None, "lease_1", "agent_a", 7, 1100.0, RefusalCode.LEASE_NOT_FOUND),
        (HELD, "lease_0", "agent_a", 7, 1100.0, RefusalCode.LEASE_ENDED),
        (HELD, "lease_1", "agent_a", 6, 1100.0, RefusalCode.STALE_TOKEN),
        (HELD, "lease_1", "agent_a", 8, 1100.0, RefusalCode.TOKEN_NOT_ISSUED),
        (HELD, "lease_1", "agent_b", 7, 1100.0, RefusalCode.NOT_HOLDER),
        (HELD, "lease_1", "agent_a", 7, 1300.0, RefusalCode.LEASE_ENDED),
        (RELEASED, "lease_1", "agent_a", 7, 1100.0, RefusalCode.LEASE_ENDED),
    ],
)
def test_renewal_of_an_ended_or_foreign_lease_is_refused(
    *, claim: Claim | None, lease_id: str, holder: str, token: int, now_s: float, code: RefusalCode
) -> None:
    assert code_of(decide_renew(claim, lease_id, holder=holder, token=token, now_s=now_s)) is code


# Release


def test_second_release_by_the_holder_is_accepted_as_a_repeat() -> None:
    first = decide_release(HELD, "lease_1", holder="agent_a", now_s=1100.0)
    assert first == Release(EndReason.RELEASED, is_repeat=False)
    again = decide_release(RELEASED, "lease_1", holder="agent_a", now_s=5000.0)
    assert again == Release(EndReason.RELEASED, is_repeat=True)


def test_only_a_key_that_may_end_leases_revokes() -> None:
    assert code_of(decide_release(HELD, "lease_1", holder="boss", now_s=1100.0)) is RefusalCode.NOT_HOLDER
    revoked = decide_release(HELD, "lease_1", holder="boss", now_s=1100.0, is_for_another=True)
    assert revoked == Release(EndReason.REVOKED, is_repeat=False)


def test_a_coordinator_that_ends_its_own_lease_releases_it() -> None:
    own = decide_release(HELD, "lease_1", holder="agent_a", now_s=1100.0, is_for_another=True)
    assert own == Release(EndReason.RELEASED, is_repeat=False)


@pytest.mark.parametrize(
    ("claim", "lease_id", "now_s", "code"),
    [
        (None, "lease_1", 1100.0, RefusalCode.LEASE_NOT_FOUND),
        (HELD, "lease_0", 1100.0, RefusalCode.LEASE_ENDED),
        (HELD, "lease_1", 1300.0, RefusalCode.LEASE_ENDED),
        (ended(HELD, EndReason.REVOKED, 1100.0), "lease_1", 1101.0, RefusalCode.LEASE_ENDED),
    ],
)
def test_a_lease_that_was_lost_cannot_be_released(
    claim: Claim | None, lease_id: str, now_s: float, code: RefusalCode
) -> None:
    assert code_of(decide_release(claim, lease_id, holder="agent_a", now_s=now_s)) is code


# Guarded writes


@pytest.mark.parametrize(
    ("claim", "holder", "token", "now_s", "code"),
    [
        (None, "agent_a", 7, 1100.0, RefusalCode.TOKEN_NOT_ISSUED),
        (FREE, "agent_a", 0, 1100.0, RefusalCode.NOT_HOLDER),
        (HELD, "agent_a", 6, 1100.0, RefusalCode.STALE_TOKEN),
        (HELD, "agent_b", 6, 1100.0, RefusalCode.STALE_TOKEN),
        (HELD, "agent_a", 8, 1100.0, RefusalCode.TOKEN_NOT_ISSUED),
        (HELD, "agent_b", 7, 1100.0, RefusalCode.NOT_HOLDER),
        (HELD, "agent_a", 7, 1300.0, RefusalCode.LEASE_ENDED),
        (RELEASED, "agent_a", 7, 1100.0, RefusalCode.LEASE_ENDED),
    ],
)
def test_write_after_the_deadline_or_of_another_holder_is_refused(
    claim: Claim | None, holder: str, token: int, now_s: float, code: RefusalCode
) -> None:
    assert check_write(claim, holder, token, now_s) == Refusal(code, claim)


def test_the_holder_writes_until_its_deadline() -> None:
    assert check_write(HELD, "agent_a", 7, 1299.999) is None


@pytest.mark.parametrize("token", [6, 7, 8])
def test_stranger_learns_nothing_about_the_current_token(token: int) -> None:
    refusal = check_write(HELD, "agent_b", token, 1100.0)
    assert refusal is not None
    assert for_stranger(refusal) == Refusal(RefusalCode.STALE_TOKEN)


def test_stranger_learns_that_a_resource_was_never_leased() -> None:
    refusal = Refusal(RefusalCode.TOKEN_NOT_ISSUED)
    assert for_stranger(refusal) is refusal


def test_resource_that_was_never_leased_has_no_times_and_no_token() -> None:
    assert (FREE.holder_incarnation, FREE.token, FREE.acquired_at_s, FREE.expires_at_s) == (0, 0, 0, 0)


def test_secret_of_lease_ids_is_not_in_the_text_of_a_claim() -> None:
    assert "hidden" not in repr(replace(HELD, id_secret="hidden"))


# Ends


def test_death_of_the_holder_ends_a_lease_at_once() -> None:
    dead = ended(HELD, EndReason.AGENT_DEAD, 1250.0)
    assert (dead.ended_at_s, dead.end_reason, dead.token) == (1250.0, EndReason.AGENT_DEAD, 7)


def test_expired_lease_ended_at_its_deadline_whatever_ends_it_later() -> None:
    dead = ended(HELD, EndReason.AGENT_DEAD, 1400.0)
    assert (dead.ended_at_s, dead.end_reason) == (1300.0, EndReason.EXPIRED)


@pytest.mark.parametrize(
    ("now_s", "swept_at_s"), [(1300.0, 1299.9 - MAX_CLOCK_DIFFERENCE_S), (1400.0, 1299.9)]
)
def test_end_of_an_overdue_lease_is_uncertain_if_no_sweep_has_run_for_long(
    now_s: float, swept_at_s: float
) -> None:
    assert is_end_uncertain(HELD, now_s, swept_at_s)


@pytest.mark.parametrize(
    ("claim", "now_s", "swept_at_s"),
    [
        (HELD, 1300.0, 1300.0 - MAX_CLOCK_DIFFERENCE_S),
        (HELD, 1299.9, 1299.0 - MAX_CLOCK_DIFFERENCE_S),
        (HELD, 1400.0, 1300.0),
        (HELD, 1400.0, None),
        (RELEASED, 1400.0, 1200.0),
        (FREE, 1400.0, 1200.0),
    ],
)
def test_end_of_a_lease_is_certain_after_a_sweep_or_if_it_is_not_overdue(
    claim: Claim, now_s: float, swept_at_s: float | None
) -> None:
    assert is_end_uncertain(claim, now_s, swept_at_s) is False


@pytest.mark.parametrize("claim", [FREE, RELEASED])
def test_lease_that_is_not_held_cannot_end(claim: Claim) -> None:
    assert ended(claim, EndReason.AGENT_DEAD, 1200.0) == claim


@dataclass(frozen=True, slots=True)
class Past:
    """A lease as its holder remembers it, whether it still has it or not."""

    holder: str
    lease_id: str
    token: int


HOLDERS = st.sampled_from(["agent_a", "agent_b"])


class OneResource(RuleBasedStateMachine):
    """Two agents that remember all their leases, and use all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.epoch = 0
        self.row: Claim | None = None
        # Kept apart from the row: which holder was granted the lease, and until when.
        self.granted: list[Past] = []
        self.deadline_s = 0.0

    def is_current(self, past: Past) -> bool:
        return bool(self.granted) and past == self.granted[-1] and self.now_s < self.deadline_s

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 59.0, 60.0, 300.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(holder=HOLDERS, ttl_seconds=st.sampled_from([1, 60, 300]), status=st.sampled_from(Status))
    def acquire(self, holder: str, ttl_seconds: int, status: Status) -> None:
        floor = self.epoch * 2**32
        decision = decide_acquire(
            self.row, status, token_floor=floor, now_s=self.now_s, ttl_seconds=ttl_seconds
        )
        is_wanted = status in {Status.ACTIVE, Status.UNHEALTHY}
        assert isinstance(decision, Grant) is (is_wanted and self.now_s >= self.deadline_s)
        if isinstance(decision, Grant):
            lease_id = f"lease_{len(self.granted)}"
            self.granted.append(Past(holder, lease_id, decision.token))
            self.deadline_s = self.now_s + ttl_seconds
            self.row = Claim(
                resource="task:t1",
                lease_id=lease_id,
                holder=holder,
                holder_incarnation=1,
                token=decision.token,
                acquired_at_s=self.now_s,
                expires_at_s=decision.expires_at_s,
            )

    @rule(data=st.data(), ttl_seconds=st.sampled_from([1, 60, 300]))
    def renew(self, data: st.DataObject, ttl_seconds: int) -> None:
        past = self.some_lease(data)
        decision = decide_renew(
            self.row,
            past.lease_id,
            holder=past.holder,
            token=past.token,
            now_s=self.now_s,
            ttl_seconds=ttl_seconds,
        )
        assert isinstance(decision, Renewal) is self.is_current(past)
        if isinstance(decision, Renewal) and self.row is not None:
            self.row = replace(self.row, expires_at_s=decision.expires_at_s)
            self.deadline_s = self.now_s + ttl_seconds

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        past = self.some_lease(data)
        decision = decide_release(self.row, past.lease_id, holder=past.holder, now_s=self.now_s)
        is_end = isinstance(decision, Release) and not decision.is_repeat
        assert is_end is self.is_current(past)
        if isinstance(decision, Release) and not decision.is_repeat and self.row is not None:
            self.end(decision.end_reason)

    @rule(reason=st.sampled_from([EndReason.EXPIRED, EndReason.AGENT_DEAD, EndReason.REVOKED]))
    def end(self, reason: EndReason) -> None:
        if self.row is not None and (reason is not EndReason.EXPIRED or self.now_s >= self.deadline_s):
            self.row = ended(self.row, reason, self.now_s)
            self.deadline_s = min(self.deadline_s, self.now_s)

    @rule(by=st.integers(1, 1000))
    def raise_epoch(self, by: int) -> None:
        self.epoch += by
        self.end(EndReason.EPOCH_RAISED)

    @rule(data=st.data(), holder=HOLDERS, off_by=st.sampled_from([-1, 0, 0, 0, 1, 2**32]))
    def write(self, data: st.DataObject, holder: str, off_by: int) -> None:
        token = self.some_lease(data).token + off_by
        refusal = check_write(self.row, holder, token, self.now_s)
        is_of_the_latest = [(past.holder, past.token) for past in self.granted[-1:]] == [(holder, token)]
        assert (refusal is None) is (is_of_the_latest and self.now_s < self.deadline_s)

    def some_lease(self, data: st.DataObject) -> Past:
        never = Past("agent_a", "lease_never", 0)
        # The latest one is what is used most.
        return data.draw(st.sampled_from([never, *self.granted, *self.granted[-1:] * 3]))

    @invariant()
    def tokens_rise_strictly(self) -> None:
        assert all(before.token < after.token for before, after in pairwise(self.granted))
        assert all(past.token >= 1 for past in self.granted)

    @invariant()
    def only_the_latest_lease_is_good_and_only_before_its_deadline(self) -> None:
        is_good = self.row is not None and is_unexpired(self.row, self.now_s)
        assert is_good is (self.now_s < self.deadline_s)
        accepted = [
            past
            for past in self.granted
            if check_write(self.row, past.holder, past.token, self.now_s) is None
        ]
        assert accepted == (self.granted[-1:] if is_good else [])


TestOneResource = OneResource.TestCase


@pytest.mark.parametrize("at_s", [0.0, 1_763_640_000.0, 1_900_000_000.0, 1e11])
def test_raised_epoch_is_above_all_known_epochs(at_s: float) -> None:
    assert raised_epoch([0], at_s) > 0
    assert raised_epoch([7, 3_000_000], at_s) == 3_000_001
    assert raised_epoch([], at_s) >= 1


def test_lost_epoch_is_not_reached_again_after_ten_minutes() -> None:
    at_s = 1_800_000_000.0
    assert raised_epoch([0], at_s) < raised_epoch([0], at_s + 600)


BEGIN_S = 1_767_225_600
"""2026-01-01: the beginning of epoch 0."""


@pytest.mark.parametrize(
    ("known", "at_s", "epoch"),
    [
        ([0], 0.0, 1),
        ([], 0.0, 1),
        ([0], BEGIN_S + 5 * 600 - 0.001, 4),
        ([0], BEGIN_S + 5 * 600, 5),
        ([9], BEGIN_S + 5 * 600, 10),
        # Below the limit of events.
        ([0], 1e12, 2**21 - 2**16),
        ([MAX_EPOCH - 1], 0.0, MAX_EPOCH),
    ],
)
def test_epochs_count_ten_minutes_since_2026(known: list[int], at_s: float, epoch: int) -> None:
    assert raised_epoch(known, at_s) == epoch


@pytest.mark.parametrize(("known", "epoch", "begin"), [(0, 5, 2**29), (7, 8, 0)])
def test_raised_floor_counts_milliseconds(known: int, epoch: int, begin: int) -> None:
    floor = raised_floor([known * 2**32], BEGIN_S + 5 * 600 + 1.5, 3)
    assert floor == fencing_token(epoch, begin + 1_500 * 512 + 3)


@given(
    st.floats(1_767_225_600, 2_900_000_000),
    st.integers(-2, 0),
    st.floats(0, 10),
    st.floats(0.002, 2_000_000),
    st.tuples(SALTS, SALTS),
)
def test_later_restore_of_one_backup_grants_higher_tokens(
    restored_at_s: float, spans: int, after_s: float, later_s: float, salts: tuple[int, int]
) -> None:
    """Also if the backup was taken in the same 10 minutes, by a store that was restored in them itself."""
    known = raised_floor([0], restored_at_s + 600 * spans - after_s, 0)
    first = raised_floor([known], restored_at_s, salts[0])
    second = raised_floor([known], restored_at_s + later_s, salts[1])
    assert known < first < second
    # And whatever is granted in between.
    assert next_token(0, second) > next_token(next_token(0, first), first)


def test_simultaneous_restores_differ_by_the_salt() -> None:
    floors = {raised_floor([0], 1_800_000_000.0, salt) for salt in range(COUNTERS_PER_MS)}
    assert len(floors) == COUNTERS_PER_MS
    assert {floor // 2**32 for floor in floors} == {raised_epoch([0], 1_800_000_000.0)}


@given(st.floats(-1e10, 1e12), st.lists(st.integers(0, 2**21), max_size=3), SALTS)
@example(BEGIN_S + 6 * 600 - 0.001, [0], COUNTERS_PER_MS - 1)
def test_raised_token_floor_leaves_three_quarters_of_the_counters(
    at_s: float, epochs: list[int], salt: int
) -> None:
    epoch, begin = divmod(raised_floor([known * 2**32 for known in epochs], at_s, salt), 2**32)
    assert epoch == raised_epoch(epochs, at_s)
    assert 0 <= begin < 2**32 / 4


def test_the_highest_epoch_is_not_raised() -> None:
    with pytest.raises(InvalidValue):
        raised_epoch([MAX_EPOCH], 0.0)


@pytest.mark.parametrize("name", ["INTENT:x/draft", "Intent:x", "TASK:1", "Shard:7"])
def test_upper_case_resource_kind_is_refused(name: str) -> None:
    with pytest.raises(InvalidResource, match="in lower case"):
        read_resource(name)
