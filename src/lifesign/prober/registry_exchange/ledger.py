"""Ledger of a prober: the source of targets and the destination of results.

A ledger leases shards to workers and accepts results for them. One implementation uses a database in the same
process, another a remote registry; the worker does not know which.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.credentials.acceptance import CredentialStatus
from lifesign.domain.credentials.missing_credentials import OtherCredential
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import Observation, ResultClass
from lifesign.domain.published_interface.published import Interface
from lifesign.domain.targets.target import StatedKind


@fast_dataclass(kw_only=True)
class ShardClaim:
    """A shard whose lease this worker holds."""

    shard: int
    fencing_token: int
    expires_at_s: float
    """By `Clock.boot_s`, counted from the time of the request."""


@fast_dataclass(kw_only=True)
class TargetEntry:
    """One target of a shard, as the ledger returns it."""

    subject_id: str
    """`tgt_…`, or the agent's id where a registered agent is probed by its card's URL."""
    url: str
    """URL in the form of `read_target`."""
    memory: ProbeMemory
    recheck_at_s: float | None = None
    """When a recheck was requested, in seconds since the epoch; None if none was."""
    version: int = 0
    """Rises with every change that is not the prober's own report."""
    confirmed_at_s: float | None = None
    """When an operator confirmed that the target may be down, in seconds since the epoch; None: never."""
    thresholds_s: tuple[float, float] | None = None
    """Silence after which it is unhealthy, and dead; None: the defaults of probing."""
    entered_at_s: float | None = None
    """When its URL or its agent changed, or its agent registered again; None: never."""
    kind: StatedKind | None = None
    """Kind by the directories; None: unknown."""
    is_repeat: bool = False
    """Whether this is the second request of the witness rule: no message is sent a second time."""
    name_failed_at_s: float | None = None
    """When the first request failed because of a name, on the monotonic clock; None: it did not."""
    shares_origin: Callable[[], bool] = lambda: False
    """Return whether another target has its origin, as far as the prober knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPage:
    """Targets of a shard: all of them, or the changes since a version."""

    entries: Sequence[TargetEntry]
    gone: Sequence[str] = ()
    """Ids that are no longer targets: they left their directory, or opted out."""
    version: int = 0
    """Pass this version the next time to get later changes only."""


@fast_dataclass(kw_only=True)
class Answered:
    """An answer of a target, which may show for other targets that the network works."""

    network_class: str
    url: str
    sent_at_s: float
    """When the request was sent, on the monotonic clock."""


@fast_dataclass(kw_only=True)
class ProbeConnection:
    """What a probe found out about the network path to its target. It is not reported."""

    network_class: str | None = None
    """Network class of the address that decided the result; None if no address is known."""
    has_answered_itself: bool = False
    """Whether that host gave an HTTP answer of any status over verified TLS, or from an allowed network.

    False if a layer is unreached.
    """
    is_name_failure: bool = False
    """Whether the name of that host did not resolve, or led to another address than the last answer."""
    is_date_failure: bool = False
    """Whether only the date of its certificate was wrong."""
    is_tls_failure: bool = False
    """Whether TLS failed for another reason, such as a certificate of an unknown authority."""
    unreached_layers: tuple[str, ...] = ()
    """Layers that failed although another layer shows that the target lives, if the way to them may be cut.

    That is so if nothing in their network class has answered since, or if their name or their TLS failed.
    """
    answered: Answered | None = None
    """An answer over a new connection, of a host that answered itself."""


NO_CONNECTION: Final = ProbeConnection()


@fast_dataclass(kw_only=True)
class ProbeReport:
    """Result of one probe, with what the next probe of the target needs to know."""

    subject_id: str
    observation: Observation
    memory: ProbeMemory
    requests: int = 1
    """Number of requests; the host gets that much more time before the next ones. Not reported."""
    contact: ProbeConnection = NO_CONNECTION
    """Not reported."""
    interface: Interface | None = None
    """Published interface, if this probe read another one than the one before."""

    @property
    def result(self) -> ResultClass:
        """Result of the probe, taking into account a known card that it did not request."""
        has_card = self.memory.card_read_at_s is not None
        return self.observation.result_with_card(ResultClass.OK if has_card else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardBatch:
    """Results for targets of one shard, in order. The ledger stores all of them or none."""

    claim: ShardClaim
    """Under which they were measured."""
    reports: Sequence[ProbeReport]
    numbers: Sequence[int]
    """Numbers of the results, counted from 1 under this claim."""
    made_at_s: Sequence[float]
    """Times of the results, by `Clock.boot_s`."""
    interfaces: Sequence[Interface | None] = ()
    """Newly read interfaces of the targets, one place for each report; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessReport:
    """What a worker reports with a claim: reached network classes, wanted witnesses, its credentials."""

    interval_s: float = 300.0
    """Interval of the crawl, in seconds."""
    reached_classes: Sequence[str] | None = None
    """Network classes in which a witness answered within the last interval; None before that is known."""
    wanted: Mapping[str, int] = field(default_factory=dict)
    """Network classes without canaries in which too few targets answer, and how many more are wanted."""
    credentials: Sequence[CredentialStatus] = ()
    """Places of the worker's credentials, and the state of each one."""


NO_WITNESS_REPORT: Final = WitnessReport()


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessNews:
    """What the ledger's answers say about witnesses: silent classes, confirmed outages, candidates."""

    silent_classes: frozenset[str] = frozenset()
    """Network classes in mass silence: no target of them is a witness."""
    confirmed_at_s: Mapping[str, float] = field(default_factory=dict)
    """Network classes that an operator confirmed, and when, in seconds since the epoch."""
    handed_out: Sequence[tuple[str, str]] = ()
    """Network class and URL of targets of other workers that may be asked once as witnesses."""


NO_NEWS: Final = WitnessNews()


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The ledger's answer to a claim: the shards that the worker owns now."""

    claims: Sequence[ShardClaim]
    """All claims of the worker from now on."""
    news: WitnessNews = NO_NEWS
    now_s: float | None = None
    """The ledger's time when it answered, in seconds since the epoch; None: that of this machine."""
    reason: str | None = None
    """Reason why the worker holds no shard, unless none is free."""
    missing_credentials: Sequence[OtherCredential] = ()
    """Credentials that other workers have, and this one lacks."""
    working_credentials: Sequence[OtherCredential] = ()
    """Credentials of other workers that worked later than those of this one, which have no known fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportAnswer:
    """The answer to a report."""

    lost: Collection[int] = ()
    """Shards whose claim is lost: none of their results was accepted or will be."""
    news: WitnessNews = NO_NEWS


@dataclass(frozen=True, slots=True)
class Outage:
    """Since when and why the ledger does not answer."""

    since_s: float
    """Time on the clock of the event loop."""
    why: str
    """First error."""


class LedgerUnreachable(Exception):
    """The ledger did not answer or could not store. The same results may be sent again."""


class LedgerRefused(LedgerUnreachable):
    """The ledger refused a request. Until an operator corrects the cause, it counts as unreachable."""


def outage_text(error: LedgerUnreachable) -> str:
    """Return in words why the ledger is unreachable, for a log line."""
    return (
        "the registry refuses"
        if isinstance(error, LedgerRefused)
        else "the registry or database is unreachable"
    )


class Ledger(Protocol):
    """Gives shards of targets to a worker, and stores its results: a registry or a local database."""

    @property
    def living_workers(self) -> frozenset[str] | None:
        """Holders of the living workers as of the last call of `changed`; None if they are not known."""
        ...

    async def claim(
        self,
        worker: str,
        ttl_s: float,
        held: Mapping[int, int],
        companions: int = 0,
        standing: WitnessReport = NO_WITNESS_REPORT,
    ) -> Granted:
        """Report that the worker is alive, renew the leases of its shards (`held`), and claim its share.

        The companions begin at the same time: the shares of those that are still missing are left free. A
        held shard that is missing in the answer is lost or surplus. Raises LedgerUnreachable.
        """
        ...

    async def targets(self, shard: int, after_version: int | None) -> TargetPage:
        """Return a shard's targets; with `after_version`, only later changes. Raises LedgerUnreachable."""
        ...

    async def changed(self, versions: Mapping[int, int]) -> Collection[int]:
        """Return which of these shards have changed since the known versions.

        One request for all. Version 0 means that nothing of a shard is known: the shard is returned if it has
        any targets. Raises LedgerUnreachable.
        """
        ...

    async def report(self, batches: Sequence[ShardBatch], interval_s: float) -> ReportAnswer:
        """Report results of several shards; each batch is stored as a whole or not at all.

        `interval_s` is that of the crawl. Handing over the same batch twice changes nothing: an observation
        counts once. Raises LedgerUnreachable.
        """
        ...

    async def unprobed(self, since_s: float) -> int:
        """Return how many targets of all shards have no result since a time (epoch).

        Raises LedgerUnreachable.
        """
        ...

    async def leave(self, worker: str) -> None:
        """Release all shards, so that others can take them at once. Raises LedgerUnreachable."""
        ...
