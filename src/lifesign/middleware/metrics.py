"""Prometheus metrics of an agent.

They have the values of the health document: ratios and percentiles over its window, of all workers that share
a state directory. docs/monitoring.md lists all metrics. Only this module needs prometheus-client.
"""

import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from lifesign.domain.health.document import EXTENSION_PREFIX, HealthDocument, HealthStatus, Trend
from lifesign.domain.health.inspection import Inspection, read_inspection
from lifesign.domain.health.outcome import Outcome
from lifesign.middleware.body import Message
from lifesign.middleware.exchange import Scope
from lifesign.middleware.process_recorders import living_recorders
from lifesign.middleware.recorder import AgentHealth

PREFIX = "lifesign_agent_"
_REASONS = [reason.name.lower() for reason in Inspection if reason is not Inspection.INSPECTED]
MOST_HEADER_BYTES = 1_024
"""A longer Accept is as good as none."""
KEPT_NS = 1_000_000_000
"""Time for which an answer is cached: more frequent scrapes cost nothing."""


class HealthCollector(Collector):
    """Collector for a registry of prometheus-client: `REGISTRY.register(HealthCollector())`.

    Without an argument it covers all agents of this process at the time of a scrape. Each document takes at
    most 2 ms.
    """

    def __init__(self, *recorders: AgentHealth) -> None:
        self._recorders = recorders

    def describe(self) -> Iterable[Metric]:
        """Return all metric families without values, so that registration measures nothing."""
        return families([])

    def collect(self) -> Iterable[Metric]:
        """Return all metric families with their values."""
        recorders = self._recorders or living_recorders()
        return families([recorder.document() for recorder in recorders])


class MetricsPage:
    """Serves the metrics at `metrics_path`; if a token is set, only to clients that send it."""

    def __init__(self, recorder: AgentHealth, token: str | None) -> None:
        self._collector = HealthCollector(recorder)
        self._token = None if token is None else token.encode()
        self._now_ns = recorder.clock.monotonic_ns
        self._kept: dict[str, bytes] = {}
        self._kept_until_ns = 0

    def answer(self, scope: Scope) -> tuple[Message, Message]:
        """Return the two ASGI messages that answer a request."""
        if scope["method"] not in {"GET", "HEAD"}:
            return _messages(405, [(b"allow", b"GET, HEAD")], b"only GET and HEAD are answered here\n")
        headers = dict(scope["headers"])
        if self._token is not None:
            scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
                return _messages(
                    401, [(b"www-authenticate", b"Bearer")], b"the token is missing or not valid\n"
                )
        accept = headers.get(b"accept", b"")[:MOST_HEADER_BYTES].decode("latin-1")
        encode, media_type = choose_encoder(accept)
        body = self._body(media_type, encode)
        sent = [(b"content-type", media_type.encode()), (b"cache-control", b"no-store")]
        return _messages(200, sent, body, is_shown=scope["method"] == "GET")

    def _body(self, media_type: str, encode: Callable[[Collector], bytes]) -> bytes:
        now_ns = self._now_ns()
        if now_ns >= self._kept_until_ns:
            self._kept = {}
            self._kept_until_ns = now_ns + KEPT_NS
        if media_type not in self._kept:
            self._kept[media_type] = encode(self._collector)
        return self._kept[media_type]


def families(documents: Iterable[HealthDocument]) -> Iterator[Metric]:
    """Return the metric families for the health documents of some agents."""
    status = _gauge("status", "Status that the agent reports: 1 for the current one.", "status")
    healthy_at = _gauge("last_healthy_timestamp_seconds", "Time at which the agent was last healthy.")
    uptime = _gauge("uptime_seconds", "Time since which the oldest worker runs.")
    ratio = _gauge("response_ratio", "Share of interactions with a valid answer, over the window.")
    samples = _gauge("window_samples", "Interactions of the window that count in the ratios.")
    window = _gauge("window_seconds", "Length of the window.")
    outcomes = _gauge("window_outcomes", "Interactions of the window by outcome.", "outcome")
    missed = _gauge("window_not_inspected", "Answers of the window that could not be inspected.", "reason")
    latency = _summary("latency_seconds", "Latency over the window.")
    first_byte = _summary("first_byte_latency_seconds", "Time until the first byte of streamed answers.")
    trend = _gauge(
        "trend", "Trend of this window against the previous one: 1 for the current trend.", "trend"
    )
    info = InfoMetricFamily(f"{PREFIX}counting", "Which outcomes count.", labels=["agent_id"])
    for document in documents:
        of = document.agent_id
        for known in HealthStatus:
            status.add_metric([of, known.value], document.health.status is known)
        _add(healthy_at, of, _seconds(document.health.last_healthy_at))
        _add(uptime, of, document.health.uptime_seconds)
        extensions = document.extensions or {}
        if (calibration := document.calibration) is not None:
            _add(ratio, of, calibration.response_ratio)
            _add(samples, of, calibration.sample_count)
            _add(window, of, calibration.measurement_window_seconds)
            _add_ms(latency, of, calibration.latency_p50_ms, calibration.latency_p99_ms)
            counts = extensions.get(f"{EXTENSION_PREFIX}outcomes", {})
            for outcome in Outcome:
                name = outcome.name.lower()
                outcomes.add_metric([of, name], counts.get(name, 0))
            _add_missed(missed, of, extensions)
        if (first := extensions.get(f"{EXTENSION_PREFIX}first-byte")) is not None:
            _add_ms(first_byte, of, first["latency_p50_ms"], first["latency_p99_ms"])
        if document.decay is not None:
            for direction in Trend:
                trend.add_metric([of, direction.value], document.decay.calibration_trend is direction)
        if (counting := extensions.get(f"{EXTENSION_PREFIX}counting")) is not None:
            info.add_metric([of], {"counting": counting})
    yield from (
        status,
        healthy_at,
        uptime,
        ratio,
        samples,
        window,
        outcomes,
        missed,
        latency,
        first_byte,
        trend,
        info,
    )


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=["agent_id", *labels])


def _summary(name: str, text: str) -> Metric:
    """Return a summary with quantiles only: sum and count would grow forever, but a window does not."""
    return Metric(PREFIX + name, text, "summary")


def _add(family: GaugeMetricFamily, agent_id: str, value: float | None) -> None:
    if value is not None:
        family.add_metric([agent_id], value)


def _add_ms(family: Metric, agent_id: str, p50_ms: float | None, p99_ms: float | None) -> None:
    for quantile, latency_ms in (("0.5", p50_ms), ("0.99", p99_ms)):
        if latency_ms is not None:
            family.add_sample(family.name, {"agent_id": agent_id, "quantile": quantile}, latency_ms / 1000)


def _add_missed(family: GaugeMetricFamily, agent_id: str, extensions: Mapping[str, Any]) -> None:
    note = read_inspection(extensions)
    if note is not None:
        for reason in _REASONS:
            family.add_metric([agent_id, reason], note.tally.not_inspected.get(reason, 0))


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _messages(
    status: int, headers: list[tuple[bytes, bytes]], body: bytes, *, is_shown: bool = True
) -> tuple[Message, Message]:
    sent = [*headers, (b"content-length", b"%d" % len(body))]
    if status != 200:
        sent.append((b"content-type", b"text/plain; charset=utf-8"))
    return (
        {"type": "http.response.start", "status": status, "headers": sent},
        {"type": "http.response.body", "body": body if is_shown else b""},
    )
