"""Text of a probe's observation for people."""

from datetime import datetime
from typing import TYPE_CHECKING, TextIO

from lifesign.cli.output.agent_page import time_text
from lifesign.cli.output.table import write_table
from lifesign.cli.output.terminal import Colour, PageLine, has_colours, write_page
from lifesign.domain.text.counts import pluralize
from lifesign.domain.text.durations import duration_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lifesign.domain.models.targets import ObservedTarget
    from lifesign.domain.observation.assertion import AssertionResult
    from lifesign.domain.observation.results import LayerResult, Observation, ProbedDocument, ResultClass

GROUP_COLOURS = {
    "alive": Colour.GREEN,
    "not_alive": Colour.RED,
    "unknown": Colour.CYAN,
    "never_probed": Colour.FAINT,
}
_HEADS = ("LAYER", "RESULT", "HTTP", "TIME", "DNS", "CONNECT", "TLS", "FIRST BYTE", "LAST BYTE", "WHY")
_ASSERTION_HEADS = ("ASSERTION", "RESULT", "EXPECTED", "ACTUAL")
_NOT_MEASURED = "-"


def write_observation(
    stream: TextIO,
    subject: str,
    result: "ResultClass",
    seen: "Observation | ObservedTarget",
    *,
    now: datetime,
    why: str | None = None,
) -> None:
    """Write the results of one target's probe, layer by layer, and what follows from them.

    `why` is the evidence that the target is alive, as far as known: a probe does not repeat all requests.
    """
    from lifesign.census.report_tables import GROUP_WORDS, RESULT_WORDS  # noqa: PLC0415
    from lifesign.census.result_groups import GROUPS  # noqa: PLC0415 - loaded by now
    from lifesign.domain.observation.result_sums import layers_of  # noqa: PLC0415
    from lifesign.domain.observation.summary_line import layer_words, liveness_signals  # noqa: PLC0415

    group = GROUPS[result]
    signs, words = liveness_signals([*layers_of(seen)], seen.kind), layer_words(seen.kind)
    text = f"{GROUP_WORDS[group]}: {(why or signs) if signs else RESULT_WORDS[result]}"
    if failed := sum(each.has_failed for each in seen.assertions or ()):
        text += f"; {pluralize(failed, 'assertion')} failed"
    if unmeasured := sum(not each.is_measured for each in seen.assertions or ()):
        text += f"; {pluralize(unmeasured, 'assertion')} not measured"
    colours = has_colours(stream)
    write_page(stream, [PageLine("", subject), PageLine("", text, GROUP_COLOURS[group])], colours=colours)
    layers = [
        _row(name, layer)
        for name, layer in (
            *((words[name], layer) for name, layer in layers_of(seen)),
            *(() if seen.tools is None else (("tools", seen.tools),)),
            *(seen.paths or {}).items(),
        )
    ]
    if layers:
        write_table(stream, _HEADS, layers)
    write_assertions(stream, seen.assertions or ())
    write_page(stream, _facts(seen, now), colours=colours)


def write_assertions(stream: TextIO, assertions: "Iterable[AssertionResult]") -> None:
    """Write the results of assertions as a table; nothing if there are none."""
    rows = [(each.name, each.result.value, each.expected, each.actual_text) for each in assertions]
    if rows:
        write_table(stream, _ASSERTION_HEADS, rows)


def _row(name: str, layer: "LayerResult") -> tuple[str, ...]:
    phases = layer.phases
    parts = (
        (phases.dns_ms, phases.connect_ms, phases.tls_ms, phases.first_byte_ms, phases.last_byte_ms)
        if phases is not None
        else (None,) * 5
    )
    status = _NOT_MEASURED if layer.status_code is None else str(layer.status_code)
    return name, layer.result.value, status, _ms(layer.latency_ms), *map(_ms, parts), layer.reason


def _ms(ms: float | None) -> str:
    """Return a time in ms; `-` if the phase did not happen, or the connection was open already."""
    if ms is None:
        return _NOT_MEASURED
    return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"


def _facts(seen: "Observation | ObservedTarget", now: datetime) -> list[PageLine]:
    facts = []
    if seen.document is not None:
        facts.append(PageLine("reports", _document(seen.document, seen.observed_at)))
    if seen.reported_agent_id is not None:
        facts.append(PageLine("calls itself", seen.reported_agent_id))
    if seen.login is not None and seen.login.text:
        facts.append(PageLine("login", seen.login.text))
    ends = seen.certificate_expires_at
    if ends is not None:
        is_over = ends <= now
        facts.append(PageLine("certificate", _end(ends, now), Colour.RED if is_over else None))
    return facts


def _document(document: "ProbedDocument", seen_at: datetime) -> str:
    """Return the lines of a document, with its age when it was read."""
    from lifesign.domain.observation.decision import age_text, shown_ratio  # noqa: PLC0415 - pydantic takes 60 ms

    parts = [document.status.value]
    if document.response_ratio is not None:
        samples = (
            "" if document.sample_count is None else f" over {pluralize(document.sample_count, 'request')}"
        )
        parts.append(f"response ratio {shown_ratio(document.response_ratio)}{samples}")
    if document.latency_p99_ms is not None:
        parts.append(f"p99 {document.latency_p99_ms:.6g} ms")
    age_s = document.age_s if document.age_s is not None else (seen_at - document.timestamp).total_seconds()
    too_much = f", too {'far' if age_s < 0 else 'old'} to count" if document.is_stale else ""
    parts.append(age_text(age_s) + too_much)
    return ", ".join(parts)


def _end(ends: datetime, now: datetime) -> str:
    left_s = (ends - now).total_seconds()
    how = f"in {duration_text(left_s)}" if left_s > 0 else f"{duration_text(-left_s)} ago"
    return f"{'ends' if left_s > 0 else 'ended'} {time_text(ends)}, {how}"
