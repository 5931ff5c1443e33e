"""Policies of the registry: thresholds that operators may set and that several operations share."""

from dataclasses import dataclass

from lifesign.domain.lifecycle import network_silence
from lifesign.domain.lifecycle import verdict_suspension as mass_exit_module
from lifesign.domain.lifecycle.network_silence import MassSilencePolicy
from lifesign.domain.lifecycle.verdict_suspension import MonitorPolicy

DEFAULT_MAX_WORKERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """Thresholds and limits of a server that several operations share."""

    mass_exit: MonitorPolicy = mass_exit_module.DEFAULT_POLICY
    mass_silence: MassSilencePolicy = network_silence.DEFAULT_POLICY
    witness_seconds: float = 60.0
    """A target is handed out as a witness at most once in this time."""
    clock_offset_seconds: float = 30.0
    """A prober's wall clock that differs from the database's by more is reported."""
    watch_seconds: float = 15.0
    """Interval at which a sweep counts silent network classes and agents with old evidence."""
    evidence_lost_seconds: float = 300.0
    """Agents have old evidence for so long before it is reported: one interval of a crawl."""
    command_seconds: float = 3_600.0
    """Time after which a command that its agent did not follow expires, unless the request has another."""
    prober_workers: int = DEFAULT_MAX_WORKERS
    """Workers that may probe with one key at a time, unless the key has a number of its own."""


DEFAULT_POLICIES = Policies()
