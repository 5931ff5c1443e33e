"""Text of an agent's record for people."""

import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from lifesign.cli.output.table import write_json
from lifesign.cli.output.terminal import Colour, PageLine, has_colours, listed, write_page
from lifesign.domain.access.event_actor import with_key_names
from lifesign.domain.lifecycle.status_table import ALIVE
from lifesign.domain.text.counts import pluralize
from lifesign.domain.text.durations import duration_text, precise_text
from lifesign.domain.text.times import utc_text

if TYPE_CHECKING:
    from lifesign.domain.models.agents import AgentRecord, AgentSummary, ObservedState, PendingCommand
    from lifesign.domain.models.links import LinkShown

_COLOURS = {
    "active": Colour.GREEN,
    "draining": Colour.CYAN,
    "unhealthy": Colour.YELLOW,
    "dead": Colour.RED,
    "deregistered": Colour.FAINT,
}

HEARTBEATS_ALONE = (
    "heartbeats do not show whether the agent works: register it with monitoring both and a card URL, "
    "so that a prober reads its health document"
)

INTERFACE_FAILS = "interface fails"


def page(agent: "AgentRecord") -> Iterator[PageLine]:
    """Return an agent's record as lines for people."""
    yield PageLine("agent", agent.agent_id)
    yield PageLine(
        "status", f"{agent.status} since {time_text(agent.status_since)}", _COLOURS.get(agent.status)
    )
    is_told_twice = agent.explanation in {"", agent.reason}
    explanation = with_key_names(agent.explanation, agent.names or {})
    yield PageLine("because", agent.reason if is_told_twice else f"{agent.reason}: {explanation}")
    yield from _health(agent)
    until = (
        ("drains by", agent.drain_deadline),
        ("maintenance", agent.maintenance_until),
    )
    for label, at in until:
        if at is not None:
            yield PageLine(label, time_text(at))
    if agent.override is not None:
        yield PageLine("override", f"{agent.override.status} until {time_text(agent.override.until)}")
    if agent.is_unreachable:
        yield PageLine("but", f"its {INTERFACE_FAILS}", Colour.YELLOW)
    facts = (
        ("name", agent.name),
        ("pool", agent.role_id),
        ("can", ", ".join(agent.capabilities)),
        ("load", load_text(agent)),
        ("endpoint", agent.endpoint),
        ("target", agent.target_url),
        ("card", agent.card_url),
    )
    yield from (PageLine(label, text) for label, text in facts if text)
    links = agent.links or []
    yield from listed("linked", [_link(link) for link in links if link.linked_at is not None])
    yield from listed("claims", [_link(link) for link in links if link.linked_at is None])
    config = agent.heartbeat_config
    if agent.last_heartbeat_at is not None:
        last = time_text(agent.last_heartbeat_at)
        yield PageLine("heartbeat", f"last {last}, every {precise_text(config.interval_seconds)}")
    unhealthy, dead = map(precise_text, (config.unhealthy_after_seconds, config.dead_after_seconds))
    yield PageLine("timeouts", f"unhealthy after {unhealthy}, dead after {dead}")
    yield PageLine("monitoring", agent.monitoring)
    yield from listed("works on", agent.reported.tasks_in_progress)
    yield from listed("will be sent", map(_command, agent.pending_commands or ()))
    metadata = ((name, json.dumps(value, ensure_ascii=False)) for name, value in agent.metadata.items())
    yield from listed("metadata", (f"{name}: {value}" for name, value in metadata))
    if agent.observed is not None:
        yield from _observed_lines(agent.observed)
    yield PageLine("registered", f"{time_text(agent.registered_at)}, incarnation {agent.incarnation}")
    yield PageLine("version", agent.etag)
    if agent.agent_key is not None:
        yield PageLine("key", agent.agent_key)
        yield PageLine("", "This is the agent's own key. It is shown once.", Colour.FAINT)


def _health(agent: "AgentRecord") -> Iterator[PageLine]:
    """Return the current health, why it is unknown, and whether the last probes failed."""
    from lifesign.domain.observation.evidence_age import lost_text  # noqa: PLC0415 - pydantic takes 60 ms

    yield PageLine("health", health_text(agent))
    if agent.unknown_reason is not None:
        yield PageLine("why", lost_text(agent.unknown_reason, agent.evidence_at, time.time()), Colour.FAINT)
    elif agent.health == "unknown" and agent.monitoring == "heartbeat":
        yield PageLine("why", HEARTBEATS_ALONE, Colour.FAINT)
    if agent.failing_probes:
        yield PageLine("but", f"its {failing_text(agent.failing_probes)}", Colour.YELLOW)


def _observed_lines(seen: "ObservedState") -> Iterator[PageLine]:
    """Return the observations of probers: beside the agent's own reports, never mixed with them."""
    from lifesign.domain.observation.assertion import KeptFailure  # noqa: PLC0415 - pydantic takes 60 ms
    from lifesign.domain.observation.summary_line import layer_words  # noqa: PLC0415

    words = layer_words(seen.kind)
    layers = (
        (words["discovery"], seen.discovery),
        (words["transport"], seen.transport),
        (words["readiness"], seen.readiness),
        (words["message"], seen.message),
        *(seen.paths or {}).items(),
    )
    for name, layer in layers:
        if layer is not None:
            reason = f": {layer.reason}" if layer.reason else ""
            yield PageLine("observed", f"{name} {layer.result} at {time_text(layer.observed_at)}{reason}")
    if seen.document is not None:
        stale = ", stale" if seen.document.is_stale else ""
        text = f"it reports {seen.document.status} at {time_text(seen.document.timestamp)}{stale}"
        yield PageLine("observed", text)
    if seen.login is not None and seen.login.text:
        yield PageLine("login", seen.login.text)
    life = seen.last_liveness_signal_at
    for each in seen.assertions or ():
        when = f" at {time_text(each.measured_at)}" if isinstance(each, KeptFailure) else ""
        yield PageLine("assertion", f"{each.result}{when}: {each.explanation()}")
        if isinstance(each, KeptFailure):
            yield PageLine("but", each.unmeasured_text, Colour.YELLOW)
    yield PageLine(
        "observed", "no liveness signal" if life is None else f"last liveness signal {time_text(life)}"
    )
    if (inconclusive := seen.inconclusive) is not None:
        yield PageLine(
            "but", f"not measured since {time_text(inconclusive.since)}: {inconclusive.reason}", Colour.YELLOW
        )


def _link(link: "LinkShown") -> str:
    """Return the state of the claim for one crawled target."""
    if link.linked_at is not None:
        return (
            f"{link.url}: linked since {time_text(link.linked_at)}, proven by {link.proof or 'nothing now'}"
        )
    if link.proof is not None:
        return f"{link.url}: proven by {link.proof}, not linked"
    return f"{link.url}: not proven ({_unproven_reason(link)})"


def _unproven_reason(link: "LinkShown") -> str:
    if link.token_requested_at is None:
        return "its card does not name this agent, and no token was requested"
    text = f"token requested at {time_text(link.token_requested_at)}"
    if link.token_refusal is not None:
        return f"{text}; {link.token_refusal}"
    if link.token_checked_at is None:
        return f"{text}, not looked for yet"
    return f"{text}, not found at {time_text(link.token_checked_at)}"


def _command(command: "PendingCommand") -> str:
    """Return the text of a pending command."""
    reason = f": {command.reason}" if command.reason else ""
    return f"{command.command} at its next heartbeat{reason} ({command.id})"


def load_text(agent: "AgentSummary") -> str:
    """Return an agent's load and capacity, such as `2/4`, with ? for an unknown value.

    Empty for an agent that is not alive: its last report is outdated.
    """
    if agent.status not in ALIVE:
        return ""
    most = agent.capacity.max_concurrent_tasks
    return f"{agent.capacity.current_load}/{'?' if most is None else most}"


def status_text(agent: "AgentSummary") -> str:
    """Return an agent's status, with a note if its probes or its interface fail."""
    if agent.failing_probes is not None:
        return f"{agent.status} ({failing_text(agent.failing_probes)})"
    is_unreachable = agent.is_unreachable and agent.status == "active"
    return f"{agent.status} ({INTERFACE_FAILS})" if is_unreachable else agent.status


def failing_text(failures: int) -> str:
    """Return in words that the last probes failed, and how many: `last 3 probes failed`."""
    return f"last {pluralize(failures, 'probe')} failed"


def health_text(agent: "AgentSummary") -> str:
    """Return an agent's health; if it is unknown because the evidence is too old, with that reason."""
    return agent.health if agent.unknown_reason is None else f"{agent.health} ({agent.unknown_reason})"


def health_with_age(agent: "AgentSummary", now_s: float) -> str:
    """Return an agent's health; if the evidence is too old, with that reason and the evidence's age."""
    if agent.unknown_reason is None or agent.evidence_at is None:
        return health_text(agent)
    age = duration_text(now_s - agent.evidence_at.timestamp())
    return f"{agent.health} ({agent.unknown_reason}, last measured {age} ago)"


def time_text(at: datetime) -> str:
    """Return a time in UTC, to the second."""
    return utc_text(at, "seconds")


def write_record(shown: "AgentRecord", *, as_json: bool) -> None:
    """Write an agent's record as JSON, or as a page for people."""
    if as_json:
        write_json(sys.stdout, shown.model_dump(mode="json", exclude_none=True))
    else:
        write_page(sys.stdout, page(shown), colours=has_colours(sys.stdout))
