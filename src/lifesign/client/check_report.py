"""Report about one agent as JSON."""

from dataclasses import asdict
from typing import Any

from lifesign.client.health import HealthCheck
from lifesign.client.server_detection import DetectedServer


def check_report(checked: HealthCheck) -> dict[str, Any]:
    """Return the result of a check in the form that `lifesign check --help` describes."""
    card, document = checked.card, checked.document
    return {
        "url": checked.url,
        "status": checked.decision.status,
        "decision": asdict(checked.decision),
        "card": {
            "url": checked.card_url,
            "result": checked.card_result,
            "reason": checked.card_reason or None,
            "name": card and card.name,
            "version": card and card.version,
            "provider": card and card.provider,
            "generation": card and card.generation,
            "findings": [asdict(finding) for finding in card.findings] if card else [],
        },
        "health": {
            "url": checked.health_url,
            "result": checked.document_result,
            "reason": checked.document_reason or None,
            "age_seconds": _age(checked.age_seconds),
            "latency_ms": None if checked.latency_ms is None else round(checked.latency_ms, 3),
        },
        "server": checked.server and _server_report(checked.server),
        "login": checked.login and checked.login.model_dump(mode="json"),
        "document": document and document.model_dump(mode="json", exclude_unset=True),
        "findings": [asdict(finding) for finding in checked.findings],
    }


def _server_report(server: DetectedServer) -> dict[str, Any]:
    answer = server.answer
    return {
        "is_mcp": server.is_server,
        "result": answer.result,
        "reason": answer.reason or None,
        "generation": server.generation,
        "version": server.version,
        "name": server.name or None,
        "latency_ms": round(answer.latency_ms, 3),
    }


def _age(seconds: float | None) -> float | None:
    """Return an age without rounding errors of `Date`, which has whole seconds: from -2 to 0 s means 0."""
    return 0.0 if seconds is not None and -2 < seconds < 0 else seconds
