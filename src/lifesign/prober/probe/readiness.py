"""Layer readiness: the health document."""

from collections.abc import Iterator
from typing import Final

from yarl import URL

from lifesign.client.candidate_urls import CandidateUrl, health_places
from lifesign.domain.a2a.interfaces import MAX_URL_CHARS
from lifesign.domain.common.finding import Finding
from lifesign.domain.credentials.request_scope import Purpose
from lifesign.domain.health.document import HealthDocument
from lifesign.domain.observation.decision import age_seconds, is_stale, stale_reason
from lifesign.domain.observation.probe_memory import moment_or_none
from lifesign.domain.observation.results import LayerResult, ProbedDocument, ResultClass
from lifesign.domain.observation.served_body import classify_document, is_absent
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.probe.session import ProbeSession, not_measured

MAX_SHOWN_FINDINGS: Final = 5
"""Maximum of findings about a valid document that the reason names."""


async def read_health(visit: ProbeSession) -> LayerResult | None:
    """Probe the layer readiness: request the health document at its URLs; None if nothing was sent.

    If no URL has a document, the answer of the first one counts. If an earlier request had no answer, only a
    known URL is tried.
    """
    first = None
    for place in _places(visit):
        if visit.is_silent(place.url) and str(place.url) != visit.recall("health_url"):
            break
        fetched = await visit.ask(
            place.url, max_bytes=visit.definition.limits.max_document_bytes, purpose=Purpose.HEALTH
        )
        if fetched is None:
            break
        layer = _classify(visit, place, fetched)
        first = first or layer
        if visit.document is not None or not (place.is_guess or is_absent(layer.result, layer.status_code)):
            return layer
    return first or (not_measured("no time was left") if visit.is_late else None)


def _places(visit: ProbeSession) -> Iterator[CandidateUrl]:
    """Yield the possible URLs of the document.

    If the card was not requested, or did not change, the last known URL is used. Guessed URLs are used only
    if no agent is known, or its card was just read. A URL that may belong to another agent is not used.
    """
    if visit.health_places:
        yield from (place for place in visit.health_places if not place.is_root)
        return
    known = visit.recall("health_url")
    if known is not None and visit.is_authoritative(known):
        yield CandidateUrl(URL(known, encoded=True))
        if not visit.asks_card:
            return
    places = health_places(visit.given, visit.card_place)
    yield from (place for place in places if str(place.url) != known and not place.is_root)


def _classify(visit: ProbeSession, place: CandidateUrl, fetched: Fetched) -> LayerResult:
    if fetched.result is not ResultClass.OK:
        return visit.layer(fetched)
    served = classify_document(fetched.body, content_type=fetched.content_type, is_json=fetched.is_json)
    if served.document is None:
        evidence = visit.keep(fetched.body) if served.result is ResultClass.INVALID_DOCUMENT else None
        return visit.layer(fetched, served.result, served.reason, evidence)
    url = str(place.url)
    if url != visit.recall("health_url") and len(url) <= MAX_URL_CHARS:
        visit.learned["health_url"] = url
    visit.reported_agent_id = fetched.scrubber.clean_text(served.document.agent_id)
    visit.document = _probed_document(visit, served.document, fetched)
    visit.learned["document_at_s"] = moment_or_none(served.document.timestamp.timestamp())
    if visit.document.is_stale:
        age_s = age_seconds(served.document, fetched.served_at or visit.now)
        reason = stale_reason(age_s, fetched.max_age_seconds)
        return visit.layer(fetched, ResultClass.STALE_DOCUMENT, reason, visit.keep(fetched.body))
    if served.findings:
        return visit.layer(fetched, None, _findings_text(served.findings), visit.keep(fetched.body))
    return visit.layer(fetched)


def _probed_document(visit: ProbeSession, document: HealthDocument, fetched: Fetched) -> ProbedDocument:
    """Return the stored part of a document, with its age by the clock of the server that sent it."""
    served_at = fetched.served_at
    age_s = age_seconds(document, served_at or visit.now)
    last_s = visit.entry.memory.document_at_s
    calibration = document.calibration
    return ProbedDocument(
        status=document.health.status,
        timestamp=document.timestamp,
        is_stale=is_stale(age_s, fetched.max_age_seconds),
        is_renewed=last_s is not None and document.timestamp.timestamp() > last_s,
        age_s=None if served_at is None else age_s,
        max_age_s=fetched.max_age_seconds,
        response_ratio=None if calibration is None else calibration.response_ratio,
        sample_count=None if calibration is None else calibration.sample_count,
        error_ratio=None if calibration is None else calibration.error_ratio,
        latency_p50_ms=None if calibration is None else calibration.latency_p50_ms,
        latency_p99_ms=None if calibration is None else calibration.latency_p99_ms,
    )


def _findings_text(findings: tuple[Finding, ...]) -> str:
    names = ", ".join(dict.fromkeys(finding.name for finding in findings[:MAX_SHOWN_FINDINGS]))
    more = f" and {len(findings) - MAX_SHOWN_FINDINGS} more" if len(findings) > MAX_SHOWN_FINDINGS else ""
    return f"valid, but odd: {names}{more}"
