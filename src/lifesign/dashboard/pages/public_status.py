"""Public status of an agent (`/status/{agent_id}`, `/badge/{agent_id}.svg`).

Only for agents with `"public_status": true` in the metadata of their record. For others the answer does not
even show that they exist.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from lifesign.dashboard.labels import agent_probe_label, failing_text
from lifesign.dashboard.maintenance_facts import is_maintained
from lifesign.dashboard.page_handler import PageHandler
from lifesign.dashboard.responses import HEADERS, page, rendered
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.lifecycle.verdict import DecidingEvidence
from lifesign.domain.models.agents import AgentRecord
from lifesign.domain.models.base import AGENT_ID_CHARACTERS
from lifesign.domain.observation.evidence_age import lost_text
from lifesign.registry.errors import AgentNotFound
from lifesign.registry.serializers.agent_records import record
from lifesign.registry.status_changes.agent_verdicts import assess_agent
from lifesign.registry.status_changes.monitor_row import verdict_context
from lifesign.storage.agents import agent_rows
from lifesign.storage.engine.transaction import Transaction

MEMBER: Final = "public_status"
"""Key in an agent's metadata."""
MAX_AGE_SECONDS: Final = 60
CHARACTER_WIDTH: Final = 6.6
"""Approximate width of the badge's letters.

The text has an explicit length, so that it fits with every font.
"""
PADDING: Final = 10
_COLOURS: Final[Mapping[str, str]] = {
    "healthy": "#0a6b57", "degraded": "#855500", "unhealthy": "#b3261e", "dead": "#b3261e",
    "draining": "#1d5b9e", "gone": "#55606c", "active": "#0a6b57", "unknown": "#55606c",
    "failing": "#855500",
}  # fmt: skip
_CACHED: Final = {**HEADERS, "Cache-Control": f"public, max-age={MAX_AGE_SECONDS}"}
_AGENT_ID: Final = re.compile(AGENT_ID_CHARACTERS)
_ABSENT_WORD: Final = "unknown"


def is_public(metadata: Mapping[str, Any]) -> bool:
    """Return whether an agent publishes its status."""
    return metadata.get(MEMBER) is True


def public_word(agent: AgentRecord) -> str:
    """Return one word for an agent's state: its status unless active, else its observed or reported health.

    Old evidence makes an agent `unknown` unless heartbeats show that it is active.
    """
    if agent.status is Status.DEREGISTERED:
        return "gone"
    if agent.status is not Status.ACTIVE:
        return agent.status.value
    is_probed_only = agent.monitoring is DecidingEvidence.PROBE
    if agent.failing_probes or (agent.is_unreachable and is_probed_only):
        return "failing"
    if agent.has_old_evidence and is_probed_only:
        return "unknown"
    return "active" if agent.health is HealthStatus.UNKNOWN else agent.health.value


class PublicStatus:
    """Answers about one agent for visitors without a key."""

    def __init__(self, desk: PageHandler) -> None:
        self._desk = desk

    async def show(self, request: Request) -> Response:
        """Show the public status page of an agent."""

        async def answer() -> Response:
            self._desk.count(request)
            shown = await self._desk.database.read(
                lambda transaction: _read(transaction, request.path_params["agent_id"])
            )
            answer = page("status.html", {**shown, "visitor": None, "path": request.url.path})
            answer.headers["Cache-Control"] = _CACHED["Cache-Control"]
            return answer

        return await self._desk.guarded(request, answer, is_public=True)

    async def badge(self, request: Request) -> Response:
        """Draw a badge; for an agent that is not public, 404 and a badge with "unknown"."""

        async def answer() -> Response:
            self._desk.count(request)
            word, status, why = _ABSENT_WORD, 404, ""
            try:
                shown = await self._desk.database.read(
                    lambda transaction: _read(transaction, request.path_params["agent_id"])
                )
                word, status = shown["word"], 200
                why = {"failing": shown["failing"], "unknown": shown["health_lost"]}.get(word, "")
            except AgentNotFound:
                pass
            return Response(badge_svg("agent", word, why), status, _CACHED, "image/svg+xml")

        return await self._desk.guarded(request, answer, is_public=True)


def badge_svg(label: str, word: str, why: str = "") -> str:
    """Draw a label and a word, with a colour for the word; it is readable without the colour.

    `why` is the text for tooltips and screen readers.
    """
    label_text, word_text = len(label) * CHARACTER_WIDTH, len(word) * CHARACTER_WIDTH
    return rendered(
        "badge.svg",
        {
            "alt_text": f"{label}: {word} ({why})" if why else f"{label}: {word}",
            "label": label,
            "label_width": label_text,
            "word": word,
            "word_width": word_text,
            "colour": _COLOURS[word],
            "padding": PADDING,
        },
    )


def _read(transaction: Transaction, agent_id: str) -> dict[str, Any]:
    stored = agent_rows.find(transaction, agent_id) if _AGENT_ID.fullmatch(agent_id) else None
    if stored is None or not is_public(stored.metadata):
        raise AgentNotFound(agent_id)
    agent = record(
        stored,
        transaction.now_s,
        assess_agent(stored, 0, transaction.now_s, verdict_context(transaction)),
    )
    now_s, reason = transaction.now_s, agent.unknown_reason
    return {
        "agent": agent,
        "word": public_word(agent),
        "failing": failing_text(agent),
        "health_lost": "" if reason is None else lost_text(reason, agent.evidence_at, now_s),
        "probe_label": agent_probe_label(agent, now_s),
        "is_maintained": is_maintained(agent),
        "now_s": transaction.now_s,
    }
