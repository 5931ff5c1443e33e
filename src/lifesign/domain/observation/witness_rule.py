"""The witness rule: when a failure that a prober saw counts against its target.

A failure is evidence against an agent only if something else proves that the prober could have reached it.
A witness is another host of the same network class that answers a request sent after the failure.
All times are seconds of a clock that never goes back.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.net.network_class import THIS_MACHINE
from lifesign.errors import InvalidValue

MAX_ASKED_TARGETS: Final = 3
"""Targets that are requested as witnesses in one round, those that answered last first."""
MIN_CANARY_RATIO: Final = 0.5
"""Share of the canaries configured for a network class that must answer."""
MIN_PUBLIC_CANARY_HOSTS: Final = 5
"""Minimum for a public network class: fewer could all be down by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessPolicy:
    """Time limits of the rule for witnesses, in seconds; InvalidValue for negative ones."""

    round_s: float = 30.0
    """Minimum time between two rounds in which the witnesses of one network class are requested, for all
    waiting failures.
    """
    answer_s: float = 3.0
    """Time that a witness has for its answer."""
    next_answer_s: float = 5.0
    """Time that a failure waits for the next answer of another target, before witnesses are requested for it.
    """
    second_request_s: float = 60.0
    """Time after a witness's answer within which the second request must be sent; after that the answer is
    void.
    """
    max_clock_offset_s: float = 30.0
    """Clock offset above which certificates that fail only by date do not count."""

    def __post_init__(self) -> None:
        for name in ("round_s", "answer_s", "next_answer_s", "second_request_s", "max_clock_offset_s"):
            value_s = getattr(self, name)
            if not 0 <= value_s < inf:
                raise InvalidValue(f"{name.removesuffix('_s')}_seconds", value_s, "a time of 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A host that normally always answers. If it does not, the network fails."""

    url: str
    status: int | None = None
    """HTTP status of its answer; None: any from 200 to 399."""

    def is_answer(self, status: int | None) -> bool:
        """Return whether a canary's status is the expected one; None means no answer."""
        if status is None or self.status is None:
            return status is not None and 200 <= status < 400
        return status == self.status


class WitnessNeed(StrEnum):
    """Whether a failure counts, or which witness must answer before it counts."""

    COUNTS = "counts"
    """The failure counts without a witness."""
    ASK_CANARIES = "ask_canaries"
    """The failure counts if the canaries of its network class answer, and the target fails again."""
    ASK_TARGETS = "ask_targets"
    """The failure counts if another target of its network class answers, and the target fails again."""
    NO_WITNESS = "no_witness"
    """No witness is possible: the failure does not count."""


@fast_dataclass(kw_only=True)
class FailureFacts:
    """Facts about a failed probe that decide whether it counts only with a witness."""

    network_class: str
    """Network class of the target's address."""
    alive_at_s: float | None
    """When the target last gave a liveness signal, by the registry's clock; None if it never did."""
    has_answered_itself: bool
    """Whether its host gave an HTTP answer of any status over verified TLS, or from an allowed network."""
    confirmed_at_s: float | None = None
    """When an operator last confirmed the target or its class, by the registry's clock; None: never."""
    has_canaries: bool = False
    """Whether canaries are configured for the class."""
    is_without_witness: bool = False
    """Whether no target can be a witness: the class is in mass silence, or not one of the prober's."""


def witness_need(facts: FailureFacts) -> WitnessNeed:
    """Return whether a failure counts, or which witness must answer first.

    A target that never gave a liveness signal has nothing to lose. In a class with canaries only they are
    witnesses, so that mass silence changes nothing there. They are asked although the host answered itself:
    a gateway, or a proxy that inspects TLS, may answer for all hosts.
    """
    if facts.alive_at_s is None or facts.network_class == THIS_MACHINE:
        return WitnessNeed.COUNTS
    if facts.confirmed_at_s is not None and facts.alive_at_s < facts.confirmed_at_s:
        return WitnessNeed.COUNTS
    if facts.has_canaries:
        return WitnessNeed.ASK_CANARIES
    if facts.has_answered_itself:
        return WitnessNeed.COUNTS
    return WitnessNeed.NO_WITNESS if facts.is_without_witness else WitnessNeed.ASK_TARGETS


@fast_dataclass(kw_only=True)
class WitnessAnswer:
    """An answer of another target, or of canaries, that shows that the network works."""

    network_class: str
    sent_at_s: float
    """When the request was sent; of several, the earliest."""
    is_looked_up: bool = False
    """Whether the name of a witness was resolved for it by name servers, not from a cache."""
    confirms_clock: bool = False
    """Whether a witness has the same time as this machine."""
    is_over_tls: bool = False
    """Whether a witness answered over TLS, with a certificate that this machine trusts."""


def bears_out(
    answer: WitnessAnswer,
    network_class: str,
    failed_at_s: float,
    *,
    is_name_failure: bool,
    is_date_failure: bool,
    is_tls_failure: bool,
) -> bool:
    """Return whether an answer shows that the network worked when a target of this class failed.

    A request that is sent when the failure is recorded is sent after it. A name that did not resolve needs a
    witness whose own name was looked up after it. A certificate that failed by date needs a witness with the
    time of this machine. Any other failure of TLS needs a witness that answered over TLS.
    """
    is_of_class = answer.network_class == network_class
    is_name_proved = answer.is_looked_up or not is_name_failure
    is_date_proved = answer.confirms_clock or not is_date_failure
    is_tls_proved = answer.is_over_tls or not is_tls_failure
    is_proved = is_name_proved and is_date_proved and is_tls_proved
    return is_of_class and answer.sent_at_s >= failed_at_s and is_proved


def is_canary_quorum(answered: int, configured: int) -> bool:
    """Return whether enough of a network class's canaries have answered."""
    return configured > 0 and answered >= MIN_CANARY_RATIO * configured


def is_second_request_in_time(answered_at_s: float, requested_at_s: float, policy: WitnessPolicy) -> bool:
    """Return whether the second request to a target was sent soon enough after a witness answered."""
    return requested_at_s - answered_at_s <= policy.second_request_s
