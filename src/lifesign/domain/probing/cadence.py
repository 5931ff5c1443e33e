"""The time of a target's next probe, and the facts that are remembered after a probe.

Every target has its own tick in each interval, derived from its hash. The load is even, also after a restart
or when targets are added. Nothing drifts, since a tick is computed and not counted from the last probe. A
target that keeps failing is probed in every second, fourth, eighth … interval. For an agent this begins with
the first failure after which it must be dead. Its hash also selects which of these intervals, so that targets
that died together are not probed together. An answer ends the back-off at once.

Besides ticks there are two more kinds of probes: one confirmation after a recovery, and an operator's
recheck. The witness rule confirms a failure at once. Times are seconds since the epoch, by the clock of the
registry.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import floor, inf
from typing import Any, Final

from lifesign.domain.common.clock_skew import is_in_future
from lifesign.domain.lifecycle.heartbeat_timeout import PROBE_THRESHOLDS
from lifesign.domain.lifecycle.verdict import DEAD_AFTER_FAILURES, MAX_DAMPING
from lifesign.domain.observation.probe_memory import MAX_IN_ROW, MAX_MOMENT_S, ProbeMemory
from lifesign.domain.observation.results import ANSWERED, INCONCLUSIVE, LayerResult, Observation, ResultClass
from lifesign.domain.targets.target import is_on_origin_of, phase_of, turn_of
from lifesign.errors import InvalidValue

MAX_RETRY_AFTER_S: Final = 86_400.0
"""A peer that asks for a longer wait is probed again after a day."""
REPEATED_WAIT_FACTOR: Final = 4.0
"""Factor by which the longest wait of an agent grows with each 429, or 402 with `Retry-After`, in a row."""
MAX_COUNTED_INTERVALS: Final = 2
"""The registry counts a gap between two measured results as silence for at most this many intervals."""
MAX_DOUBLINGS: Final = 30
MAX_ROUNDED_TURNS: Final = 2
"""Maximum of turns by which a tick is late because of rounding."""
ROBOTS_EVERY_S: Final = 82_800.0
"""A robots.txt is not used for more than 24 h (RFC 9309 2.4); a look may come an interval late."""
MAX_CONFIRMATION_RATIO: Final = 0.25
"""Share of the interval: a confirmation comes no later, so that it does not coincide with the next tick."""
MIN_GAP_RATIO: Final = 0.5
"""Share of the interval: a tick sooner after the last probe is skipped. That probe was late, or a recheck."""

PAYMENT_REQUIRED: Final = 402
"""Without `Retry-After` it asks only for money: the target is probed half as often, and never less often."""
TOO_MANY_REQUESTS: Final = 429
_OF_A_RESULT: Final = (
    "probed_at_s", "result", "failures_in_row", "silence_s", "doublings", "confirm_at_s", "not_before_s",
    "slowdowns", "alive_at_s", "network_class", "address",
)  # fmt: skip
"""Members of a memory that follow from the result of a probe."""
_NEVER_PROBED: Final = ProbeMemory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """Intervals and thresholds of a target's probes, in seconds; InvalidValue for impossible values."""

    interval_s: float = PROBE_THRESHOLDS.interval_s
    """Time between two ticks of a target."""
    confirm_after_s: float = 30.0
    """A recovery is confirmed after so long, or after a quarter of a short interval."""
    card_every_s: float = 86_400.0
    """Interval at which a card is requested without a reason to expect a change."""
    max_backoff_s: float = 86_400.0
    """Maximum time between two ticks of a target that fails or requests a slower rate."""
    recheck_every_s: float = 60.0
    """Minimum time between two rechecks of a target; the caller that accepts rechecks enforces it."""
    unhealthy_after_s: float = PROBE_THRESHOLDS.unhealthy_after_s
    """Silence after which the target is unhealthy, without flap damping."""
    dead_after_s: float = PROBE_THRESHOLDS.dead_after_s
    """Silence after which the target is dead, without flap damping."""
    is_registered: bool = False
    """Whether the target is a registered agent: it is probed as patiently as one that once answered.

    It is silent since its registration, and one that is probed less often would not be found dead in time.
    """

    def __post_init__(self) -> None:
        _refuse_unless_positive("interval_seconds", self.interval_s)
        _refuse_unless_positive("confirm_after_seconds", self.confirm_after_s)
        _refuse_unless_positive("card_every_seconds", self.card_every_s)
        _refuse_unless_positive("recheck_every_seconds", self.recheck_every_s)
        _refuse_unless_positive("unhealthy_after_seconds", self.unhealthy_after_s)
        _refuse_unless_positive("dead_after_seconds", self.dead_after_s)
        if not self.interval_s <= self.max_backoff_s < inf:
            expected = f"at least interval_seconds, {self.interval_s:g}"
            raise InvalidValue("max_backoff_seconds", self.max_backoff_s, expected)

    @property
    def max_doublings(self) -> int:
        """How often the interval may double before it exceeds `max_backoff_s`, up to MAX_DOUBLINGS."""
        return min(int(self.max_backoff_s / self.interval_s).bit_length() - 1, MAX_DOUBLINGS)

    @property
    def patience_s(self) -> float:
        """Silence up to which an agent is probed in every interval, in seconds.

        The registry counts a gap between two results for two intervals at most: an agent that is probed less
        often would never be found dead. Flap damping may multiply its thresholds. Probes take different
        times, so the registry may have counted a little less silence: half an interval covers that.
        """
        return MAX_DAMPING * self.dead_after_s + MIN_GAP_RATIO * self.interval_s

    def longest_wait_s(self, slowdowns: int) -> float:
        """Return the longest wait, in seconds, that counts if a target requests it that once answered.

        `slowdowns` is the number of requests for a slower rate in a row, this one included; 0 if it is
        none. A failing target could hide its failure by its wait, and a gateway in front of it that refuses
        all requests for a minute could request any wait. So only repeated requests get a long wait. The
        limit holds until the agent has failed for long enough to be dead.
        """
        first_s = min(self.unhealthy_after_s, MAX_COUNTED_INTERVALS * self.interval_s)
        repeated = min(max(slowdowns - 1, 0), MAX_DOUBLINGS)
        return min(first_s * REPEATED_WAIT_FACTOR**repeated, MAX_RETRY_AFTER_S)

    def robots_wait_s(self, disallowed_in_row: int) -> float:
        """Return the time until a robots.txt that disallows a request is read again.

        It grows like `longest_wait_s`: a gateway on the prober's side may have answered. The file is read
        with a tick, and the last reading may have been late.
        """
        least_s = MIN_GAP_RATIO * self.interval_s
        return min(max(self.longest_wait_s(disallowed_in_row) - least_s, least_s), ROBOTS_EVERY_S)

    def with_thresholds(self, unhealthy_after_s: float, dead_after_s: float) -> "Cadence":
        """Return the cadence with the thresholds of a registered agent, in seconds."""
        return _with_thresholds(self, unhealthy_after_s, dead_after_s)


@lru_cache(maxsize=1024)
def _with_thresholds(cadence: Cadence, unhealthy_after_s: float, dead_after_s: float) -> Cadence:
    return replace(
        cadence, unhealthy_after_s=unhealthy_after_s, dead_after_s=dead_after_s, is_registered=True
    )


@dataclass(frozen=True, slots=True)
class MissedTicks:
    """Due times of a target at which no probe took place. One report covers all of them."""

    count: int
    """0 or more."""
    last_at_s: float | None
    """When the last of them was due; None if there is none."""


def next_probe_at_s(
    subject_id: str, memory: ProbeMemory, cadence: Cadence, now_s: float, recheck_at_s: float | None = None
) -> float:
    """Return when a target is to be probed next: at its next due time, or earlier to confirm or recheck.

    Missed ticks and confirmations are not caught up: after a restart nothing is due at once except rechecks.
    A recheck (`recheck_at_s` is the time of its request, None or before the last probe if there is none)
    overrides the prober's own back-off, not the peer's `Retry-After`: it is due at once however soon after a
    tick, since rechecks are limited by `recheck_every_s`.
    """
    asked_s = _not_before_s(memory, now_s)
    due_s = _tick_after(subject_id, memory, cadence, max(now_s, asked_s, _rested_s(memory, cadence, now_s)))
    if memory.confirm_at_s is not None and memory.confirm_at_s >= now_s:
        due_s = min(due_s, max(memory.confirm_at_s, asked_s))
    if recheck_at_s is not None and is_recheck_open(memory, recheck_at_s, now_s):
        due_s = min(due_s, max(recheck_at_s, asked_s, now_s))
    return due_s


def is_recheck_open(memory: ProbeMemory, recheck_at_s: float | None, now_s: float) -> bool:
    """Return whether a recheck was requested after the last probe."""
    return recheck_at_s is not None and recheck_at_s > _last_s(memory, now_s)


def retry_after_until_s(memory: ProbeMemory, now_s: float) -> float | None:
    """Return until when the target requested to wait, which even a recheck respects; None if that is over."""
    until_s = _not_before_s(believed(memory, now_s), now_s)
    return until_s if until_s > now_s else None


def believed(memory: ProbeMemory, now_s: float) -> ProbeMemory:
    """Return a target's memory without times in the future, which a changed clock or a false key stored.

    They were stored before a clock was set back, or by a prober with a stolen key. A probe in the future
    counts as none, and its card and robots.txt as not read; a requested wait still counts, from now on. A
    liveness signal in the future counts as now: the agent has been alive.
    """
    changed: dict[str, float | None] = {}
    probed_at_s, not_before_s, alive_at_s = memory.probed_at_s, memory.not_before_s, last_alive_s(memory)
    if alive_at_s is not None and is_in_future(alive_at_s, now_s):
        changed["alive_at_s"] = now_s
    for name in ("robots_read_at_s", "card_read_at_s"):
        at_s = getattr(memory, name)
        if at_s is not None and is_in_future(at_s, now_s):
            changed[name] = None
    if probed_at_s is not None and is_in_future(probed_at_s, now_s):
        if not_before_s is not None:
            wait_s = min(not_before_s - probed_at_s, MAX_RETRY_AFTER_S)
            changed["not_before_s"] = now_s + wait_s if wait_s > 0 else None
        changed |= {"probed_at_s": None, "confirm_at_s": None, "robots_read_at_s": None}
    elif not_before_s is not None and is_in_future(not_before_s, now_s + MAX_RETRY_AFTER_S):
        changed["not_before_s"] = None
    return memory.model_copy(update=changed) if changed else memory


def after_probe(
    memory: ProbeMemory,
    observation: Observation,
    cadence: Cadence,
    began_at_s: float,
    retry_after_s: float | None = None,
    *,
    learned: Mapping[str, Any] | None = None,
) -> ProbeMemory:
    """Return a target's memory after a probe. `learned` contains what the probe found out besides.

    A recovery is confirmed once; a confirmation is not confirmed again. `retry_after_s` is the longest wait
    that any answer requested. It counts only with an answer that was not as expected, up to a day, and for an
    agent that is not dead up to `Cadence.longest_wait_s`.
    """
    layers = [observation.discovery, observation.transport, observation.readiness, observation.message]
    requested = [layer for layer in layers if layer is not None]
    is_alive, has_failed = observation.is_liveness_signal, observation.is_measured_failure
    result = observation.result
    is_measured = is_alive or any(layer.is_measured for layer in requested)
    ended_at_s = max(began_at_s, observation.observed_at.timestamp())

    failures_in_row, silence_s, doublings = memory.failures_in_row, memory.silence_s, memory.doublings
    if is_alive:
        failures_in_row, silence_s = 0, 0.0
    elif has_failed:
        failures_in_row = min(failures_in_row + 1, MAX_IN_ROW)
        silence_s = min(silence_s + _gap_s(memory, cadence, began_at_s), MAX_MOMENT_S)
    is_undecided = _is_undecided(memory, cadence, failures_in_row, silence_s)
    if has_failed or is_alive:
        doublings = min(doublings + 1, MAX_IN_ROW) if has_failed and not is_undecided else 0
    slowdowns, not_before_s = memory.slowdowns, memory.not_before_s
    has_price = any(layer.status_code == PAYMENT_REQUIRED for layer in requested)
    is_slowdown = any(_requests_slowdown(layer) for layer in requested) or (
        has_price and retry_after_s is not None
    )
    if is_slowdown:
        slowdowns, not_before_s = min(slowdowns + 1, MAX_IN_ROW), None
    elif has_price:
        # An agent with a price answers so forever: probed ever less often, its death would be found late.
        slowdowns, not_before_s = 1, None
    elif is_measured:
        slowdowns, not_before_s = 0, None
    if retry_after_s is not None and any((layer.status_code or 0) >= 300 for layer in requested):
        repeated = slowdowns if is_slowdown else 0
        longest_s = cadence.longest_wait_s(repeated) if is_undecided else MAX_RETRY_AFTER_S
        not_before_s = ended_at_s + min(max(retry_after_s, 0.0), longest_s)

    confirm_at_s = None
    if is_alive and memory.failures_in_row > 0 and not slowdowns:
        # From the newest on: a dead agent needs two liveness signals with this distance.
        confirm_at_s = ended_at_s + min(cadence.confirm_after_s, cadence.interval_s * MAX_CONFIRMATION_RATIO)
    return memory.model_copy(
        update={
            "probed_at_s": began_at_s,
            "result": memory.result if result in INCONCLUSIVE else result,
            "failures_in_row": failures_in_row,
            "silence_s": silence_s,
            "doublings": doublings,
            "confirm_at_s": confirm_at_s,
            "not_before_s": not_before_s,
            "slowdowns": slowdowns,
            "alive_at_s": ended_at_s if is_alive else last_alive_s(memory),
            "network_class": _network_class(memory, observation, is_alive=is_alive),
            "address": (is_alive and observation.address) or memory.address,
            **(learned or {}),
        }
    )


def with_backoff_restarted(memory: ProbeMemory) -> ProbeMemory:
    """Return a target's memory as if only the last probe had failed, so that probes are frequent again.

    An operator ended a maintenance, or asked for the recheck: the agent is alive in the registry, or may be.
    The same holds for a robots.txt that disallows the target.
    """
    counts = ("failures_in_row", "doublings", "disallowed_in_row")
    least = {name: min(getattr(memory, name), 1) for name in counts}
    return memory.model_copy(update={**least, "silence_s": 0.0})


def last_alive_s(memory: ProbeMemory) -> float | None:
    """Return the time of the target's last known liveness signal; None if it never gave one."""
    return memory.card_read_at_s if memory.alive_at_s is None else memory.alive_at_s


def without_result(before: ProbeMemory, after: ProbeMemory) -> ProbeMemory:
    """Return what a probe learned about a target, such as the card's URL, without the probe's result."""
    return after.model_copy(update={name: getattr(before, name) for name in _OF_A_RESULT})


def without_card(memory: ProbeMemory) -> ProbeMemory:
    """Return a target's memory without the content of its card, so that the next card counts as new."""
    return memory.model_copy(update={"card_etag": None, "card_digest": None, "interface_digest": None})


def without_card_reading(memory: ProbeMemory) -> ProbeMemory:
    """Return a target's memory so that the next probe reads the card again, as what is known may be false.

    The URL of the document is forgotten, since it may be another agent's, and so are the security schemes:
    they decide in which part of a request an API key is sent. The URL of the interface stays: an agent may be
    alive although its card fails.
    """
    names = ("card_etag", "card_digest", "card_read_at_s", "health_url", "document_at_s", "card_schemes")
    return memory.model_copy(update={**dict.fromkeys(names), "alive_at_s": last_alive_s(memory)})


def without_failures(memory: ProbeMemory) -> ProbeMemory:
    """Return a target's memory without what delays the next probe: its results concern another agent now."""
    names = ("failures_in_row", "silence_s", "doublings", "confirm_at_s", "not_before_s", "slowdowns")
    return memory.model_copy(update={name: getattr(_NEVER_PROBED, name) for name in names})


def without_waits(memory: ProbeMemory) -> ProbeMemory:
    """Return a target's memory without anything that delays the next probe, as the writer is not trusted."""
    forgotten = {
        "is_disallowed_by_robots": False,
        "disallowed_in_row": 0,
        "robots_read_at_s": None,
        "is_opted_out": False,
    }
    return without_failures(memory).model_copy(update=forgotten)


def backs_off(memory: ProbeMemory, cadence: Cadence) -> bool:
    """Return whether a target is probed less often, because it keeps failing or requested a wait."""
    return _doublings(memory, cadence) > 0 or min(memory.slowdowns, cadence.max_doublings) > 0


def backoff(memory: ProbeMemory, cadence: Cadence) -> int:
    """Return by which factor (a power of 2) the interval of a failing target is longer now."""
    return 1 << _doublings(memory, cadence)


def slowdown(memory: ProbeMemory, cadence: Cadence) -> int:
    """Return by which factor (a power of 2) the interval is longer because the target requested a wait."""
    return 1 << min(memory.slowdowns, cadence.max_doublings)


def wants_card(memory: ProbeMemory, cadence: Cadence, now_s: float, *, asks_else: Collection[str]) -> bool:
    """Return whether the next probe has to request the card. `asks_else`: the other URLs that it requests.

    It does if no card is known, or if the target did not answer as expected, since a new card may name
    another URL. It does if no other URL is probed (`asks_else`), or one on another origin, which counts only
    with the card. Otherwise it does so once in `card_every_s`, at a time of its own, so that cards that were
    first read together are not always read together.
    """
    card_url = memory.card_url
    if not asks_else or memory.card_read_at_s is None or card_url is None:
        return True
    if not all(is_on_origin_of(place, card_url) for place in asks_else):
        return True
    if memory.failures_in_row or memory.result not in ANSWERED:
        return True
    return _is_period_due(card_url, memory.card_read_at_s, cadence.card_every_s, now_s)


def wants_robots(subject_id: str, memory: ProbeMemory, cadence: Cadence, now_s: float) -> bool:
    """Return whether the next probe has to request robots.txt.

    The first probe does, then about one a day. If robots.txt disallows an agent, it is read again after
    two intervals, then after four times as long each time: a gateway on the prober's side may have answered.
    """
    read_at_s = memory.robots_read_at_s
    # A time in the future: some clock was wrong.
    if read_at_s is None or read_at_s > now_s:
        return True
    return _robots_due_s(subject_id, memory, cadence, read_at_s) <= now_s


def missed_ticks(
    subject_id: str, memory: ProbeMemory, cadence: Cadence, since_s: float, until_s: float
) -> MissedTicks:
    """Return the due times of a target after `since_s`, up to `until_s`, at which no probe took place.

    For time in which no worker probed it. Ticks in back-off or in a requested wait are not counted, nor are
    confirmations.
    """
    asked_s = max(_not_before_s(memory, since_s), _rested_s(memory, cadence, since_s))
    first_s = _tick_after(subject_id, memory, cadence, max(since_s, asked_s))
    if first_s > until_s:
        return MissedTicks(0, None)
    period_s = cadence.interval_s * (1 << _doublings(memory, cadence))
    count = floor((until_s - first_s) / period_s) + 1
    return MissedTicks(count, first_s + (count - 1) * period_s)


def _tick_after(subject_id: str, memory: ProbeMemory, cadence: Cadence, after_s: float) -> float:
    """Return the first tick strictly after a moment: (k + phase) intervals, k being its turn."""
    if memory.is_disallowed_by_robots and memory.robots_read_at_s is not None:
        # Until its robots.txt is read again there is nothing that we may ask.
        after_s = max(after_s, _robots_due_s(subject_id, memory, cadence, memory.robots_read_at_s))
    phase, turns = phase_of(subject_id), 1 << _doublings(memory, cadence)
    k = floor(after_s / cadence.interval_s - phase)
    k += (turn_of(subject_id) - k) % turns
    # Rounding may put a moment and its own tick in either order, by one interval and its own turn.
    for _ in range(MAX_ROUNDED_TURNS):
        if (k + phase) * cadence.interval_s > after_s:
            break
        k += turns
    return (k + phase) * cadence.interval_s


def _doublings(memory: ProbeMemory, cadence: Cadence) -> int:
    """Return how many times the interval is doubled for a target that fails."""
    is_undecided = _is_undecided(memory, cadence, memory.failures_in_row, memory.silence_s)
    return 0 if is_undecided else min(memory.doublings, cadence.max_doublings)


def _is_undecided(memory: ProbeMemory, cadence: Cadence, failures_in_row: int, silence_s: float) -> bool:
    """Return whether a target is an agent that the registry may not have found dead yet.

    It needs a probe in every interval, whatever its earlier interval and thresholds were. Silence is compared
    and not a number of failures, because the crawl's interval may have changed since.
    """
    if not _is_patient(memory, cadence):
        return False
    return failures_in_row < DEAD_AFTER_FAILURES or silence_s <= cadence.patience_s


def _gap_s(memory: ProbeMemory, cadence: Cadence, began_at_s: float) -> float:
    """Return the time since the last probe, as far as the registry counts it as silence."""
    gap_s = 0.0 if memory.probed_at_s is None else max(0.0, began_at_s - memory.probed_at_s)
    return min(gap_s, MAX_COUNTED_INTERVALS * cadence.interval_s)


def _is_patient(memory: ProbeMemory, cadence: Cadence) -> bool:
    """Return whether a target is registered, or was ever recognised as an agent."""
    return cadence.is_registered or last_alive_s(memory) is not None or memory.health_url is not None


def _network_class(memory: ProbeMemory, observation: Observation, *, is_alive: bool) -> str | None:
    """Return the class to remember: of the address that answered last, else of the first request."""
    if memory.network_class is None or (is_alive and observation.network_class is not None):
        return observation.network_class
    return memory.network_class


def _last_s(memory: ProbeMemory, now_s: float) -> float:
    """Return when the last probe began: at most now, even if another machine's clock is ahead; else -inf."""
    return -inf if memory.probed_at_s is None else min(memory.probed_at_s, now_s)


def _rested_s(memory: ProbeMemory, cadence: Cadence, now_s: float) -> float:
    """Return the earliest time at which the prober itself would probe again, to spare the peer.

    Half an interval covers the delay of the last probe: its own next tick is not skipped.
    """
    doublings = min(memory.slowdowns, cadence.max_doublings)
    wait_s = cadence.interval_s * ((1 << doublings) - MIN_GAP_RATIO)
    return _last_s(memory, now_s) + wait_s


def _not_before_s(memory: ProbeMemory, now_s: float) -> float:
    """Return from when on the peer is content to see us; never more than a day ahead."""
    return -inf if memory.not_before_s is None else min(memory.not_before_s, now_s + MAX_RETRY_AFTER_S)


def _requests_slowdown(layer: LayerResult) -> bool:
    return layer.status_code == TOO_MANY_REQUESTS or layer.result is ResultClass.RATE_LIMITED


def _robots_due_s(subject_id: str, memory: ProbeMemory, cadence: Cadence, read_at_s: float) -> float:
    """Return from when on a robots.txt has to be read again: within ROBOTS_EVERY_S of the last reading."""
    in_row = memory.disallowed_in_row
    # A target that never answered can wait a day, but not for the second reading (0 in a row).
    if not memory.is_disallowed_by_robots or (in_row and not _is_patient(memory, cadence)):
        return _period_due_s(subject_id, read_at_s, ROBOTS_EVERY_S)
    # A target's own time of the day would add readings, each of which makes the next wait longer.
    return read_at_s + cadence.robots_wait_s(in_row)


def _is_period_due(key: str, last_s: float, period_s: float, now_s: float) -> bool:
    """Return whether this key's own moment in each period lies after `last_s`, up to now.

    True also if the last time lies in the future: some clock was wrong.
    """
    return last_s > now_s or _period_due_s(key, last_s, period_s) <= now_s


def _period_due_s(key: str, last_s: float, period_s: float) -> float:
    phase = phase_of(f"daily:{key}")
    return (floor(last_s / period_s - phase) + 1 + phase) * period_s


def _refuse_unless_positive(name: str, value_s: float) -> None:
    if not 0 < value_s < inf:
        raise InvalidValue(name, value_s, "a time above 0")
