"""Overview of the fleet."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lifesign.dashboard.event_lines import NOTABLE, lines_of
from lifesign.dashboard.fleet_facts import FleetCountCache, ObservedCounts
from lifesign.dashboard.labels import agent_status_text, moment_text
from lifesign.dashboard.login_sessions import visitor_of
from lifesign.dashboard.page_handler import PageHandler, RequestContext
from lifesign.domain.access.permissions import Permission
from lifesign.domain.common.clock_skew import offset_text
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.models.base import moment
from lifesign.domain.models.monitor import MonitorRecord, TrackRecord
from lifesign.domain.models.monitor_faults import (
    MonitorFault,
    credential_faults,
    silent_class_faults,
    unreached_target_faults,
)
from lifesign.domain.observation.evidence_age import REASON_WORDS
from lifesign.domain.text.counts import pluralize
from lifesign.registry.serializers.agent_records import record
from lifesign.registry.status_changes.agent_verdicts import assess_agent
from lifesign.registry.status_changes.monitor_row import verdict_context
from lifesign.storage.agents import dashboard_table
from lifesign.storage.agents.dashboard_table import Order, TableFilter
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log

EVENTS_SHOWN = 15
MAX_CLOCKS = 10
"""Maximum number of warnings about probers' clocks; further ones are left out."""
TROUBLES_SHOWN = 8
"""Number of agents shown that went down last."""


class Overview:
    """Answers at `/`."""

    def __init__(self, desk: PageHandler, facts: FleetCountCache, clock_limit_s: float) -> None:
        self._desk = desk
        self._facts = facts
        self._clock_limit_s = clock_limit_s

    async def answer(self, request: Request) -> Response:
        """Show the fleet."""

        async def show() -> Response:
            self._desk.count(request)
            # Nothing is counted for a visitor without permission.
            visitor, shown = await self._desk.context(request, _read)
            maintained = await self._facts.maintained.get()
            seen = await self._facts.observed.get()
            counts = {
                "fleet": await self._facts.agents.get(),
                "observed": seen,
                "warnings": warnings(shown["monitor"], seen, self._clock_limit_s),
                "maintenances": [one for one in maintained if one.until > moment(shown["now_s"])],
            }
            return self._desk.page(request, "overview.html", visitor, **counts, **shown)

        return await self._desk.guarded(request, show)

    async def read_once(self) -> None:
        """Run the queries of the page once in advance: the first queries of a process are the slowest."""

        def read(transaction: Transaction) -> None:
            _read(self._desk.in_context(transaction, visitor_of(transaction, "", is_open=True)))

        await self._desk.database.read(read)


def _read(context: RequestContext) -> Mapping[str, Any]:
    transaction = context.transaction
    latest = event_log.latest(transaction, limit=EVENTS_SHOWN, types=[kind.value for kind in NOTABLE])
    facts = verdict_context(transaction)
    troubles: list[dict[str, Any]] = []
    for status in (Status.UNHEALTHY, Status.DEAD):
        found = dashboard_table.listing(
            transaction,
            TableFilter(status=status),
            Order.CHANGED,
            after=None,
            limit=TROUBLES_SHOWN - len(troubles),
        )
        for stored in found:
            agent = record(stored, transaction.now_s, assess_agent(stored, 0, transaction.now_s, facts))
            troubles.append({"agent": agent, "why": agent_status_text(agent)})
    monitor: MonitorRecord = context.ask("GET", "/api/v1/monitor")
    return {
        "events": lines_of(transaction, latest),
        "troubles": troubles,
        "monitor": monitor,
        "monitor_words": monitor_words(monitor),
        "may_release": monitor.state == "suspended" and context.visitor.may(Permission.RELEASE_SUSPENSION),
        "position": event_log.last_sequence(transaction),
        "now_s": transaction.now_s,
    }


def release_suspension(context: RequestContext, _request: Request, _form: Mapping[str, str]) -> str:
    """End the suspension of verdicts."""
    context.ask("POST", "/api/v1/monitor/release")
    return ""


def warnings(monitor: MonitorRecord, seen: ObservedCounts, clock_limit_s: float) -> list[str]:
    """Return the faults of the monitoring besides suspensions, one sentence for each."""
    found = []
    if seen.total and not seen.probers:
        found.append(f"No prober is running: none of the {pluralize(seen.total, 'target')} is probed.")
    if (lost := monitor.lost_evidence) is not None:
        reasons = "; ".join(f"{REASON_WORDS[reason]} ({count:,})" for reason, count in lost.reasons.items())
        found.append(
            f"There is no evidence about {pluralize(lost.agents, 'living agent')} since "
            f"{moment_text(lost.since)}: {reasons}."
        )
    faults = (
        *silent_class_faults(monitor),
        *unreached_target_faults(monitor),
        *credential_faults(monitor),
    )
    found += [sentence_of(fault) for fault in faults]
    found += [
        f"The clock of prober {holder} is {offset_text(offset_s)} the registry's. This affects no verdict."
        for holder, offset_s in sorted(seen.clock_offsets_s.items())
        if abs(offset_s) > clock_limit_s
    ][:MAX_CLOCKS]
    return found


def sentence_of(fault: MonitorFault) -> str:
    """Return a fault as sentences."""
    return f"{fault.text[0].upper()}{fault.text[1:]}. Hint: {fault.hint}."


def monitor_words(monitor: MonitorRecord) -> str:
    """Return whether verdicts are suspended, and why, as text."""
    if monitor.state == "normal":
        return "Verdicts are active: agents whose heartbeats or probes fail become unhealthy, then dead."
    if monitor.state == "resuming":
        return "A suspension has ended: missed heartbeats and failed probes count again."
    return " ".join(
        f"Verdicts are suspended for agents monitored by {name}: {_mass_silence_text(track)}"
        for name, track in monitor.tracks.items()
        if track.state == "suspended"
    )


def _mass_silence_text(track: TrackRecord) -> str:
    silent = f"{pluralize(track.exits, 'agent')} timed out"
    if track.unwitnessed:
        return (
            f"{silent}, and no request of any agent has arrived since. The connection to this registry may "
            "be broken, so no agent becomes unhealthy or dead for it."
        )
    return (
        f"{silent} together, more than the limit of {track.limit}. The monitoring may be at fault, so no "
        "agent becomes unhealthy or dead for it."
    )
