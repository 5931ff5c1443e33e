"""Is it them, or is it us who cannot see?

If many fail at once who answered the time before, it is probably the prober: its process stands still, its
names are not looked up, no way leads out. What it saw then is not measured, and counts as nobody's fault.

`judge` decides from facts; `SelfCheck` keeps the facts. Times are seconds of a clock that never goes back.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agent_health.observation import ResultClass

LAG_EVERY_SECONDS: Final = 0.1
"""How often a prober looks whether its event loop wakes it in time."""
LAG_WINDOW_SECONDS: Final = 10.0
MIN_LAGS: Final = 20
MAX_LAG_SECONDS: Final = 1.0
"""The 99th percentile: later, deadlines of seconds say as much about us as about them."""
MAX_STANDSTILL_SECONDS: Final = 2.0
"""One lag of this size is enough: whatever was under way meanwhile looks like a timeout."""
MAX_CLOCK_STEP_SECONDS: Final = 5.0
"""If the two clocks part by more, somebody has set the calendar's, or the machine slept."""

MIN_ATTEMPTS: Final = 20
"""Judged are the last lookups, and connections, of so many or a little more; fewer say nothing."""
NETWORK_SECONDS: Final = 300.0
"""Older ones say nothing either."""
MAX_LOOKUP_FAULT_RATIO: Final = 0.5
"""Of lookups that failed for the resolver's own fault: a name without an address is none."""
MAX_LOCAL_FAULT_RATIO: Final = 0.9
"""Of connections that did not leave this machine; some agents stand where no way leads from here."""

CANARY_SECONDS: Final = 150.0
"""How long a round of canaries says something: they are asked once a minute."""
MAX_CANARIES_LOST_RATIO: Final = 0.5

SILENT_HOSTS: Final = 15
"""So many hosts that answered the time before are silent, and nobody has answered since the first of them.

If three in ten really die at once, this happens by chance once in 70 million rows.
"""
EXPECTED: Final = 100
"""Of so many probes of targets that had answered before …"""
MAX_LOST_RATIO: Final = 0.6
"""… no more than this are believed to have failed by themselves."""
EXPECTED_SECONDS: Final = 600.0
"""Older ones are forgotten."""
MAX_DOUBT_SECONDS: Final = 900.0
"""If somebody answers all the while, a great loss is believed after so long, as the monitor does."""

MAX_BACK_SECONDS: Final = 300.0
"""No further back is doubted what was seen before the doubt."""
MIN_ILL_SECONDS: Final = 10.0
"""How long an illness lasts beyond its last sign."""

HAS_SPOKEN: Final = frozenset({
    ResultClass.OK,
    ResultClass.GATED,
    ResultClass.NOT_AN_AGENT,
    ResultClass.INVALID_DOCUMENT,
    ResultClass.STALE_DOCUMENT,
    ResultClass.HTTP_ERROR,
    ResultClass.TOO_LARGE,
    ResultClass.REDIRECT_REFUSED,
    ResultClass.RATE_LIMITED,
})  # fmt: skip
"""Somebody was reached, whoever it was and whatever was said."""
SILENT: Final = frozenset({
    ResultClass.REFUSED,
    ResultClass.TIMEOUT,
    ResultClass.DNS_FAILURE,
    ResultClass.TLS_FAILURE,
})  # fmt: skip
"""Nobody was reached; a gate or a cut on our own side looks the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCounts:
    """What the resolver and the connector of this process have counted since it began."""

    lookups: int = 0
    """Names that were looked up, answers from memory left out."""
    lookup_faults: int = 0
    """Lookups that failed because no resolver did its work."""
    connects: int = 0
    """Connections that were tried."""
    local_faults: int = 0
    """Those that did not leave this machine: no route, no address, no descriptor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a prober knows of itself at one moment."""

    lag_p99_s: float = 0.0
    """How late the event loop was, over the last 10 s."""
    standstill_s: float = 0.0
    """Its longest lag in that time."""
    lookups: int = 0
    """The last ones: MIN_ATTEMPTS, and those of the same second; fewer if there were no more."""
    lookup_faults: int = 0
    connects: int = 0
    """The last ones, likewise."""
    local_faults: int = 0
    canaries: int = 0
    """Asked in the last round; 0 if there are none, or the round is too old."""
    canaries_lost: int = 0
    silent_hosts: int = 0
    """Hosts that answered the time before and are silent now, since anybody answered; up to SILENT_HOSTS."""
    expected: int = 0
    """The last probes of targets that had answered before, up to EXPECTED."""
    lost: int = 0
    """How many of these were silent."""
    lossy_for_s: float = 0.0
    """Since when they are too many."""


def is_lossy(facts: Facts) -> bool:
    """Whether more of those who had answered before are silent than is believable."""
    return facts.expected >= EXPECTED and facts.lost > MAX_LOST_RATIO * facts.expected


def judge(facts: Facts) -> str | None:
    """Return why a prober cannot trust what it sees; None if it can. For people, below 200 characters.

    Canaries that answer outweigh the silence of everybody else. Without them, a silence of all is never
    believed while it lasts: whoever watches few agents behind one line should have canaries.
    """
    lost = _lost_canaries(facts) if facts.canaries else _lost_targets(facts)
    return _network_fault(facts) or lost or _slowness(facts)


def _slowness(facts: Facts) -> str | None:
    if facts.standstill_s >= MAX_STANDSTILL_SECONDS:
        return f"this process stood still for {facts.standstill_s:.1f} s"
    if facts.lag_p99_s > MAX_LAG_SECONDS:
        return f"this process is overloaded: its event loop is {facts.lag_p99_s:.2f} s late"
    return None


def _network_fault(facts: Facts) -> str | None:
    if facts.lookups >= MIN_ATTEMPTS and facts.lookup_faults >= MAX_LOOKUP_FAULT_RATIO * facts.lookups:
        return f"the resolver failed: {facts.lookup_faults} of {facts.lookups} lookups came to nothing"
    if facts.connects >= MIN_ATTEMPTS and facts.local_faults >= MAX_LOCAL_FAULT_RATIO * facts.connects:
        return f"no way leads out: {facts.local_faults} of {facts.connects} connections failed right here"
    return None


def _lost_canaries(facts: Facts) -> str | None:
    if facts.canaries_lost > MAX_CANARIES_LOST_RATIO * facts.canaries:
        return f"{facts.canaries_lost} of {facts.canaries} canaries do not answer"
    return None


def _lost_targets(facts: Facts) -> str | None:
    if facts.silent_hosts >= SILENT_HOSTS:
        return f"nobody answers: {facts.silent_hosts} hosts or more fell silent one after another"
    if is_lossy(facts) and facts.lossy_for_s < MAX_DOUBT_SECONDS:
        return f"{facts.lost} of {facts.expected} targets that had answered fell silent"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """That a prober does not trust what it sees."""

    why: str
    """For people."""
    since_s: float
    """Who failed later is doubted."""
    is_about_time: bool = False
    """Whether the prober was merely slow: only timeouts are doubted."""


class SelfCheck:
    """The facts of one prober, as they come in, and whether it is ill."""

    def __init__(self, now_s: float) -> None:
        self.doubt: Doubt | None = None
        """None while it is well; set by `look`."""
        self._ill_until_s = 0.0
        self._lags: deque[tuple[float, float]] = deque()
        self._counts: deque[tuple[float, NetworkCounts]] = deque()
        self._canaries = (-math.inf, 0, 0)
        self._heard_at_s = now_s
        self._silent_hosts: set[str] = set()
        self._expected: deque[tuple[float, bool]] = deque(maxlen=EXPECTED)
        self._lossy_since_s: float | None = None

    @property
    def is_suspicious(self) -> bool:
        """Whether the canaries should be asked at once rather than within the minute."""
        return len(self._silent_hosts) >= SILENT_HOSTS or self._lossy_since_s is not None

    def note_lag(self, lag_s: float, now_s: float) -> None:
        """Note how late the event loop woke us."""
        self._lags.append((now_s, lag_s))
        while self._lags[0][0] < now_s - LAG_WINDOW_SECONDS:
            self._lags.popleft()

    def note_counts(self, counts: NetworkCounts, now_s: float) -> None:
        """Note what was counted so far; once a second."""
        if not self._counts or self._counts[-1][1] != counts:
            self._counts.append((now_s, counts))

    def note_canaries(self, asked: int, lost: int, now_s: float) -> None:
        """Note how many canaries were asked, and how many did not answer."""
        self._canaries = (now_s, asked, lost)

    def note_probe(self, host: str, before: ResultClass | None, result: ResultClass, now_s: float) -> None:
        """Note what a probe came to, and what the one before it had come to."""
        if result in HAS_SPOKEN:
            self._heard_at_s = now_s
            if self._silent_hosts:
                self._silent_hosts.clear()
        elif result not in SILENT:
            return
        if before not in HAS_SPOKEN:
            return
        is_silent = result in SILENT
        self._expected.append((now_s, is_silent))
        if is_silent and len(self._silent_hosts) < SILENT_HOSTS:
            self._silent_hosts.add(host)

    def facts(self, now_s: float) -> Facts:
        """Return what is known now."""
        while self._expected and self._expected[0][0] < now_s - EXPECTED_SECONDS:
            self._expected.popleft()
        while self._counts and self._counts[0][0] < now_s - NETWORK_SECONDS:
            self._counts.popleft()
        lags = sorted(lag_s for _, lag_s in self._lags)
        last = self._counts[-1][1] if self._counts else NetworkCounts()
        names = self._counts_before(lambda then: last.lookups - then.lookups)
        ways = self._counts_before(lambda then: last.connects - then.connects)
        asked_at_s, canaries, canaries_lost = self._canaries
        is_fresh = now_s - asked_at_s <= CANARY_SECONDS
        return Facts(
            lag_p99_s=lags[math.ceil(0.99 * len(lags)) - 1] if len(lags) >= MIN_LAGS else 0.0,
            standstill_s=lags[-1] if lags else 0.0,
            lookups=last.lookups - names.lookups,
            lookup_faults=last.lookup_faults - names.lookup_faults,
            connects=last.connects - ways.connects,
            local_faults=last.local_faults - ways.local_faults,
            canaries=canaries if is_fresh else 0,
            canaries_lost=canaries_lost if is_fresh else 0,
            silent_hosts=len(self._silent_hosts),
            expected=len(self._expected),
            lost=sum(is_silent for _, is_silent in self._expected),
            lossy_for_s=0.0 if self._lossy_since_s is None else now_s - self._lossy_since_s,
        )

    def look(self, now_s: float) -> Doubt | None:
        """Judge the facts of this moment; return the doubt, which is also kept in `doubt`."""
        facts = self.facts(now_s)
        if not is_lossy(facts):
            self._lossy_since_s = None
        elif self._lossy_since_s is None:
            self._lossy_since_s = now_s
        why = judge(facts)
        if why is not None:
            self._ill_until_s = now_s + MIN_ILL_SECONDS
            since_s = self._since_s(facts, now_s) if self.doubt is None else self.doubt.since_s
            is_about_time = why == _slowness(facts)
            self.doubt = Doubt(why=why, since_s=since_s, is_about_time=is_about_time)
        elif now_s >= self._ill_until_s:
            self.doubt = None
        return self.doubt

    def _counts_before(self, attempts_since: Callable[[NetworkCounts], int]) -> NetworkCounts:
        """Return the counts before the last MIN_ATTEMPTS of something; the oldest if there were fewer."""
        then = NetworkCounts()
        for _, then in reversed(self._counts):
            if attempts_since(then) >= MIN_ATTEMPTS:
                break
        return then

    def _since_s(self, facts: Facts, now_s: float) -> float:
        """Return since when it may have been us: since somebody answered last, or since we were slow."""
        since_s = self._heard_at_s
        if is_lossy(facts):
            since_s = min(at_s for at_s, is_silent in self._expected if is_silent)
        if facts.standstill_s >= MAX_STANDSTILL_SECONDS or facts.lag_p99_s > MAX_LAG_SECONDS:
            since_s = min(since_s, now_s - LAG_WINDOW_SECONDS - facts.standstill_s)
        return max(since_s, now_s - MAX_BACK_SECONDS - facts.standstill_s)
