"""The document that an agent reports about itself (draft 4.2 to 4.5)."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lifesign.domain.health.document import EXTENSION_PREFIX, SCHEMA_VERSION, HealthDocument, HealthStatus
from lifesign.domain.health.inspection import INSPECTION_KEY, StatusRule, inspection_extension, tally_of
from lifesign.domain.health.outcome import CountingProfile, Outcome, Samples, count_samples
from lifesign.domain.health.rolling_window import WindowTotals
from lifesign.domain.health.status import WindowStatus, window_status
from lifesign.domain.health.trend import calibration_trend


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """What the operator declares about an agent for its health document."""

    agent_id: str
    window_seconds: float
    counting: CountingProfile
    baseline_p99_ms: float | None
    model_changed_at: datetime | None
    capabilities_updated_at: datetime | None
    is_inspecting: bool = True
    """Whether bodies are inspected, so that a failure with HTTP 200 counts."""


def self_report(
    declared: OperatorFacts,
    totals: WindowTotals,
    *,
    now: datetime,
    uptime_seconds: float,
    last_healthy_at: datetime | None,
) -> HealthDocument:
    """Return the health document in full detail, without members that have no value.

    `last_healthy_at` is the last time at which the agent was healthy before; if it is healthy now, the
    document has `now`.
    """
    samples = count_samples(totals.current, declared.counting)
    # A worker that was killed between the two may have left a latency without its sample.
    percentiles = totals.latencies.percentiles_ms(0.50, 0.99) if samples.total else ()
    p99_ms = percentiles[1] if percentiles else None
    status = window_status(
        samples,
        tally_of(totals.inspections),
        p99_ms,
        declared.baseline_p99_ms,
        totals.current[Outcome.TOOL_ERROR],
    )

    health: dict[str, Any] = {"status": status.status}
    if status.status is HealthStatus.HEALTHY:
        last_healthy_at = now
    if last_healthy_at is not None:
        health["last_healthy_at"] = min(last_healthy_at, now)
    health["uptime_seconds"] = round(uptime_seconds)

    previous = count_samples(totals.previous, declared.counting)
    # Omitted ratios cannot be compared.
    comparable = samples if status.has_ratios else Samples()
    had_ratios = window_status(
        previous,
        tally_of(totals.previous_inspections),
        tool_errors=totals.previous[Outcome.TOOL_ERROR],
    ).has_ratios
    before = previous if had_ratios else Samples()
    decay: dict[str, Any] = {
        "calibration_trend": calibration_trend(comparable, before),
        "days_since_model_change": _whole_days(declared.model_changed_at, now),
    }
    if declared.capabilities_updated_at is not None:
        decay["last_capability_update"] = declared.capabilities_updated_at

    return HealthDocument.model_validate(
        {
            "schema_version": SCHEMA_VERSION,
            "agent_id": declared.agent_id,
            "timestamp": now,
            "health": health,
            "calibration": _calibration(
                samples, percentiles, declared.window_seconds, has_ratios=status.has_ratios
            ),
            "decay": decay,
            "extensions": _extensions(declared, totals, status),
        }
    )


def no_report(agent_id: str, now: datetime) -> HealthDocument:
    """Return a health document with the status unknown, for an agent whose own measurement fails."""
    return HealthDocument.model_validate(
        {
            "schema_version": SCHEMA_VERSION,
            "agent_id": agent_id,
            "timestamp": now,
            "health": {"status": HealthStatus.UNKNOWN},
        }
    )


def _calibration(
    samples: Samples, percentiles: tuple[float, ...], window_seconds: float, *, has_ratios: bool
) -> dict[str, Any]:
    calibration: dict[str, Any] = {}
    if has_ratios:
        # To six digits: rounded down, since 0.4999999 must not look like a degraded 0.5, and adding up to 1.
        millionths = samples.responses * 1_000_000 // samples.total
        calibration["response_ratio"] = millionths / 1_000_000
        calibration["error_ratio"] = (1_000_000 - millionths) / 1_000_000
    if percentiles:
        calibration["latency_p50_ms"], calibration["latency_p99_ms"] = percentiles
    calibration["measurement_window_seconds"] = window_seconds
    calibration["sample_count"] = samples.total
    return calibration


def _extensions(declared: OperatorFacts, totals: WindowTotals, status: WindowStatus) -> dict[str, Any]:
    is_usual = status.rule is StatusRule.RATIO
    rule = StatusRule.HTTP_STATUS if is_usual and not declared.is_inspecting else status.rule
    counts = {outcome.name.lower(): totals.current[outcome] for outcome in Outcome if totals.current[outcome]}
    extensions: dict[str, Any] = {
        EXTENSION_PREFIX + "counting": declared.counting.value,
        EXTENSION_PREFIX + "outcomes": counts,
        INSPECTION_KEY: inspection_extension(tally_of(totals.inspections), rule),
    }
    if first_bytes := totals.first_bytes.percentiles_ms(0.50, 0.99):
        extensions[EXTENSION_PREFIX + "first-byte"] = {
            "latency_p50_ms": first_bytes[0],
            "latency_p99_ms": first_bytes[1],
        }
    if declared.baseline_p99_ms is not None:
        extensions[EXTENSION_PREFIX + "baseline"] = {"latency_p99_ms": declared.baseline_p99_ms}
    return extensions


def _whole_days(since: datetime | None, now: datetime) -> int | None:
    """Whole days from `since` to `now`, rounded down; None if unknown, 0 if in the future."""
    return None if since is None else max(0, (now - since) // timedelta(days=1))
