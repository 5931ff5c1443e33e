"""Prometheus metrics of the registry.

Names and units follow Prometheus' conventions. Values from the database are the same in every server process;
counters are sums over all processes of one server. docs/monitoring.md lists all metrics.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from lifesign.domain.access.event_actor import KEY_ACTOR_PREFIX
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.lifecycle.verdict_suspension import (
    MonitorPolicy,
    MonitorState,
    Track,
    exit_limit,
)
from lifesign.domain.observation.evidence_age import PROBER_FAULTS
from lifesign.domain.tasks.task_states import TaskStatus
from lifesign.registry.agents.heartbeat_endpoint import HEARTBEAT_PATH
from lifesign.registry.policies import Policies
from lifesign.registry.probing.evidence_watch import watched_in
from lifesign.registry.probing.reachability_witnesses import mass_silence_in
from lifesign.registry.request_handling.work_counts import DURATION_BUCKETS_S, Sums, WorkKind
from lifesign.registry.status_changes.monitor_row import monitors_in
from lifesign.storage.engine.registry_row import RegistryRow
from lifesign.storage.whole_database.totals import Totals

PREFIX = "lifesign_registry_"
NEVER_PROBED = "never_probed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Facts about the machine and this process."""

    database_is_up: bool
    changes_fail: bool
    disks: Mapping[str, int]
    """Free bytes, by the kind of files on the disk."""
    database_bytes: int | None
    certificate_ends_s: float | None
    """None without TLS, or if unknown."""
    policies: Policies


def families(totals: Totals | None, sums: Sums, here: Surroundings) -> Iterator[Metric]:
    """Return all metrics; `totals` is None before the database has answered for the first time."""
    yield _gauge("build_info", "Version of lifesign.", {(("version", version("lifesign")),): 1})
    yield _number("processes", "Number of running server processes.", sums.processes)
    yield _number("database_up", "1 if the database answered the last request.", here.database_is_up)
    yield _number("changes_failing", "1 if the last change could not be stored.", here.changes_fail)
    yield _gauge(
        "disk_free_bytes",
        "Free bytes of the disk, by what is stored there.",
        {(("place", name),): free for name, free in here.disks.items()},
    )
    size = here.database_bytes if totals is None or totals.size_bytes is None else totals.size_bytes
    yield _number("database_bytes", "Size of the database.", size)
    yield _number(
        "certificate_expiry_timestamp_seconds",
        "Expiry of the server's own certificate; absent without one.",
        here.certificate_ends_s,
    )
    if totals is not None:
        yield from _of_the_database(totals, here.policies)
    yield _number(
        "database_marker_timestamp_seconds",
        "Time at which the marker outside the database was last up to date; absent if it never was.",
        sums.marked_at_s,
    )
    yield from _of_the_log(sums)
    yield from _sum_families(sums)
    yield from _http(sums)


def _of_the_database(totals: Totals, policies: Policies) -> Iterator[Metric]:
    yield _number("counted_timestamp_seconds", "Time at which the database was counted.", totals.at_s)
    every = {
        (status.value, health.value): 0
        for status in Status
        if status is not Status.REGISTERING
        for health in HealthStatus
    }
    yield _gauge(
        "agents",
        "Agents by status and health.",
        {
            (("status", status), ("health", health)): count
            for (status, health), count in {**every, **totals.agents}.items()
        },
    )
    yield _gauge(
        "agent_down_since_timestamp_seconds",
        (
            "Time since which an agent is unhealthy or dead, with the reason; without agents in "
            "maintenance, at most metrics_agents."
        ),
        {
            (("agent_id", down.agent_id), ("status", down.status), ("reason", down.reason)): down.since_s
            for down in totals.down
        },
        ("agent_id", "status", "reason"),
    )
    yield from _of_the_sweep(totals, policies.mass_exit)
    yield _number("leases", "Current leases.", totals.leases)
    yield _gauge(
        "tasks",
        "Tasks by status; handoff: tasks that wait for people.",
        {(("status", status.value),): totals.tasks.get(status.value, 0) for status in TaskStatus},
    )
    yield _number(
        "handoff_oldest_timestamp_seconds",
        "Time since which the longest waiting task waits for people; absent without one.",
        totals.oldest_handoff_s,
    )
    yield _number("event_log_sequence", "Sequence of the last event.", totals.sequence)
    yield _number(
        "event_log_archived_sequence", "Sequence up to which events are archived.", totals.archived_sequence
    )
    yield _number(
        "archive_erasures_pending",
        "Erased agents whose events may still be in archive files.",
        totals.archive_erasures,
    )
    yield _gauge(
        "webhooks",
        "Webhooks by state; disabled: after three days of failures.",
        {
            (("state", "active"),): totals.webhooks - totals.webhooks_disabled,
            (("state", "disabled"),): totals.webhooks_disabled,
        },
    )
    behind = 0 if totals.webhook_sequence is None else max(0, totals.sequence - totals.webhook_sequence)
    yield _number("webhook_lag_events", "Events that the slowest webhook has not received yet.", behind)
    yield _gauge(
        "targets",
        "Probe targets by their last result.",
        {(("result", result or NEVER_PROBED),): count for result, count in totals.targets.items()},
        ("result",),
    )
    yield _number(
        "newest_observation_timestamp_seconds",
        "Time of the newest observation among the latest thousand targets; absent without one.",
        totals.newest_observation_s,
    )
    yield _number("probers", "Probers that hold a share of the targets.", totals.probers)
    yield _gauge(
        "prober_shards",
        "Shards that the workers of a key hold.",
        {(("key", _key_id(holder)),): number for holder, number in totals.prober_shards.items()},
        ("key",),
    )
    yield _counter(
        "prober_results",
        "Results about living agents that the workers of a key reported.",
        {
            (("key", _key_id(holder)), ("result", result)): number
            for holder, sums in totals.prober_results.items()
            for result, number in sums._asdict().items()
        },
        ("key", "result"),
    )
    yield _number("keys", "Valid keys.", totals.keys)


def _key_id(holder: str) -> str:
    return holder.removeprefix(KEY_ACTOR_PREFIX)


def _of_the_sweep(totals: Totals, policy: MonitorPolicy) -> Iterator[Metric]:
    lag_s = 0.0 if totals.due_at_s is None else max(0.0, totals.at_s - totals.due_at_s)
    yield _number("sweep_lag_seconds", "Delay of the most overdue assessment of an agent.", lag_s)
    swept_at_s = None if totals.row is None else totals.row.swept_at_s
    yield _number("swept_timestamp_seconds", "Time of the last sweep; absent before the first.", swept_at_s)
    if totals.row is None:
        return
    monitors = monitors_in(totals.row, totals.at_s)
    tracks = {(("track", track.value),): monitors.of(track) for track in Track}
    yield _gauge(
        "decisions_suspended",
        "1 if verdicts are suspended: missed evidence changes no status; by kind of monitoring.",
        {track: monitor.state is MonitorState.SUSPENDED for track, monitor in tracks.items()},
    )
    yield _gauge(
        "monitor_state",
        "State of the monitor: 1 for the current state of each track.",
        {
            (*track, ("state", state.value)): monitor.state is state
            for track, monitor in tracks.items()
            for state in MonitorState
        },
    )
    yield _gauge(
        "monitor_exits",
        "Agents that fell silent within this cadence; while verdicts are suspended, waiting agents.",
        {track: monitor.exits_this_cadence for track, monitor in tracks.items()},
    )
    yield _gauge(
        "monitor_exit_limit",
        "Maximum number of agents that may fall silent within a cadence without a suspension.",
        {track: exit_limit(monitor, policy) for track, monitor in tracks.items()},
    )
    yield _gauge(
        "monitor_unwitnessed",
        "Waiting agents during whose silence no request of any agent arrived.",
        {track: monitor.unwitnessed for track, monitor in tracks.items()},
    )
    yield from _of_the_evidence(totals.row)


def _of_the_evidence(row: RegistryRow) -> Iterator[Metric]:
    watched = watched_in(row)
    yield _gauge(
        "old_evidence_agents",
        "Living agents without evidence through a fault of the monitoring, by reason.",
        {(("reason", reason.value),): watched.reasons.get(reason, 0) for reason in sorted(PROBER_FAULTS)},
    )
    yield _number(
        "evidence_lost",
        "1 if agents have been without evidence, by a fault of the monitoring, for evidence_lost_after.",
        watched.is_reported,
    )
    yield _gauge(
        "credential_fault_since_timestamp_seconds",
        "Time since which a credential of a prober does not work; at most 200 credentials.",
        {
            (("key", each.key), ("credential", each.name), ("fault", each.state.value)): each.since_s
            for each in watched.credentials
            if each.is_lasting
        },
        ("key", "credential", "fault"),
    )
    yield _number(
        "silent_network_classes",
        "Network classes in mass silence: none of their targets is a witness.",
        len(mass_silence_in(row).classes),
    )


def _of_the_log(sums: Sums) -> Iterator[Metric]:
    log = sums.log
    yield _number(
        "event_log_sound",
        "1 if the hash chain of the event log was intact at the last check; absent before the first.",
        None if log is None else log.is_sound,
    )
    yield _number(
        "event_log_checked_timestamp_seconds",
        "End of the last check of the whole event log.",
        None if log is None else log.checked_at_s,
    )
    yield _number(
        "event_log_checked_sequence",
        "Sequence up to which the hash chain was intact.",
        None if log is None else log.sequence,
    )


def _sum_families(sums: Sums) -> Iterator[Metric]:
    yield _counter(
        "events",
        "Events that this server has committed, by type.",
        {(("type", kind.value),): count for kind, count in sums.events().items()},
        ("type",),
    )
    yield _counter(
        "transitions",
        "Status changes that this server has committed, by new status and reason.",
        {
            (("status", status.value), ("reason", reason.value)): count
            for (status, reason), count in sums.transitions().items()
        },
        ("status", "reason"),
    )
    heartbeats = sum(of.by_status.get("2xx", 0) for of in sums.paths() if of.path == HEARTBEAT_PATH)
    yield _total("heartbeats", "Accepted heartbeats.", heartbeats)
    yield _total(
        "rate_limited_requests",
        "Requests that were refused because their key exceeded its rate limit.",
        sums.work(WorkKind.RATE_LIMITED),
    )
    sweep = SummaryMetricFamily(f"{PREFIX}sweep_duration_seconds", "Number and duration of sweeps.")
    sweep.add_metric([], sums.work(WorkKind.SWEEPS), sums.work(WorkKind.SWEEP_NS) / 1e9)
    yield sweep
    yield _total("sweep_failures", "Sweeps that failed.", sums.work(WorkKind.SWEEPS_FAILED))
    yield _counter(
        "webhook_deliveries",
        "Batches of events that were sent to webhooks, by whether they were accepted.",
        {
            (("result", "taken"),): sums.work(WorkKind.DELIVERED),
            (("result", "refused"),): sums.work(WorkKind.UNDELIVERED),
        },
    )


def _http(sums: Sums) -> Iterator[Metric]:
    requests: dict[Labels, float] = {}
    durations = HistogramMetricFamily(
        f"{PREFIX}http_request_duration_seconds",
        "Duration of requests, including waits for work and events.",
        labels=("method", "path"),
    )
    for of in sums.paths():
        for status, count in of.by_status.items():
            requests[("method", of.method), ("path", of.path), ("status", status)] = count
        if not any(of.buckets):
            continue
        bounds = (*map(str, DURATION_BUCKETS_S), "+Inf")
        buckets = list(zip(bounds, accumulate(of.buckets), strict=True))
        durations.add_metric([of.method, of.path], buckets, of.seconds)
    yield _counter(
        "http_requests",
        "Answered requests, by operation and class of the status.",
        requests,
        ("method", "path", "status"),
    )
    yield durations


Labels = tuple[tuple[str, str], ...]


def _gauge(name: str, message: str, values: Mapping[Labels, float], labels: Iterable[str] = ()) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, message, labels=_names(values, labels))
    for given, value in values.items():
        family.add_metric([text for _, text in given], float(value))
    return family


def _counter(name: str, message: str, values: Mapping[Labels, float], labels: Iterable[str] = ()) -> Metric:
    family = CounterMetricFamily(PREFIX + name, message, labels=_names(values, labels))
    for given, value in values.items():
        family.add_metric([text for _, text in given], value)
    return family


def _names(values: Mapping[Labels, float], labels: Iterable[str]) -> list[str]:
    return [*labels] or [name for name, _ in next(iter(values), ())]


def _number(name: str, text: str, value: float | None) -> Metric:
    """Return one metric; a value of None is omitted, and never zero."""
    return _gauge(name, text, {} if value is None else {(): value})


def _total(name: str, text: str, value: float) -> Metric:
    return _counter(name, text, {(): value})
