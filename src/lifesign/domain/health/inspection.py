"""Inspection of answers: which of them could be read, and which rule the status follows from.

Only a 2xx answer that claims JSON or an event stream is inspected. One that could not be read counts in
no ratio (`Outcome.NOT_INSPECTED`). The health document publishes both numbers in an extension.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Final

from lifesign.domain.health.document import EXTENSION_PREFIX

INSPECTION_KEY: Final = EXTENSION_PREFIX + "inspection"
"""The extension of the health document with the numbers of inspected answers."""
MAX_COUNT: Final = 2**53 - 1
"""A peer's larger count is ignored."""


class Inspection(IntEnum):
    """Whether the middleware could read an answer's body, and why not. The number is stored: append only."""

    INSPECTED = 0
    """The deciding members were read, or the body is not the JSON that it claims."""
    COMPRESSED = 1
    """The application compressed the body inside the middleware."""
    OVERSIZED = 2
    """The body, or one event of the stream, is longer than `max_inspected_bytes`."""
    COMPLEX = 3
    """Too many brackets and commas, or nested too deeply."""
    NO_ROOM = 4
    """This process already kept its maximum of bytes for inspection."""
    FROM_FILE = 5
    """The server sent the body from a file."""
    UNSPECIFIED = 6
    """Recorded as `not_inspected` with `AgentHealth.record`, which has no argument for a reason.

    Or the answer to a call that neither claims JSON nor is JSON.
    """
    TOOL_RESULT = 7
    """The deciding members were read: a result of an MCP tool, good or failed."""


_READ: Final = (Inspection.INSPECTED, Inspection.TOOL_RESULT)


class StatusRule(StrEnum):
    """Rule by which the status of a health document was determined."""

    RATIO = "ratio"
    """The response ratio and, with a declared baseline, the latency (draft 4.3)."""
    HTTP_STATUS = "http_status"
    """The same, with inspection switched off: each answer counted by its HTTP status."""
    FAILURES_SEEN = "failures_seen"
    """Most answers were not inspected. The failures that were seen decide, with the others taken as good."""
    MOSTLY_NOT_INSPECTED = "mostly_not_inspected"
    """Most answers were not inspected, and the failures that were seen decide nothing: unknown."""
    MOSTLY_TOOL_ERRORS = "mostly_tool_errors"
    """The ratio is healthy, but most results of MCP tools are errors: unknown."""


@dataclass(frozen=True, slots=True)
class InspectionTally:
    """How many answers of a window, claiming JSON or an event stream, could be inspected."""

    inspected: int = 0
    not_inspected: Mapping[str, int] = field(default_factory=dict)
    """Counts by the name of the reason in lower case. Reasons that did not occur are absent."""
    tool_results: int = 0
    """Number of the inspected answers that are results of MCP tools."""

    @property
    def is_mostly_missing(self) -> bool:
        """Whether more than half of the answers were not inspected."""
        return sum(self.not_inspected.values()) > self.inspected

    @property
    def max_tool_results(self) -> int:
        """Number of results of MCP tools; if none is known, that of all inspected answers.

        An agent's own records do not say which of its good answers are results of tools.
        """
        return self.tool_results or self.inspected


def tally_of(counts: Sequence[int]) -> InspectionTally:
    """Return the tally of `counts`, which are indexed by `Inspection`."""
    reasons = (reason for reason in Inspection if reason not in _READ and counts[reason])
    return InspectionTally(
        sum(counts[reason] for reason in _READ),
        {reason.name.lower(): counts[reason] for reason in reasons},
        counts[Inspection.TOOL_RESULT],
    )


def inspection_extension(tally: InspectionTally, rule: StatusRule) -> dict[str, Any]:
    """Return the value of the extension that states how many answers were inspected.

    `not_inspected` is absent if every answer was inspected, `tool_results` if no tool of MCP was called.
    """
    member: dict[str, Any] = {"rule": rule.value, "inspected": tally.inspected}
    if tally.not_inspected:
        member["not_inspected"] = dict(tally.not_inspected)
    if tally.tool_results:
        member["tool_results"] = tally.tool_results
    return member


@dataclass(frozen=True, slots=True)
class InspectionNote:
    """What a health document of another agent says about the inspection of its answers."""

    rule: StatusRule | None
    """None if the document names no rule that this version knows."""
    tally: InspectionTally


def read_inspection(extensions: Mapping[str, Any] | None) -> InspectionNote | None:
    """Return what a document's extension says about inspection; None if it has none that is valid."""
    value = (extensions or {}).get(INSPECTION_KEY)
    if not isinstance(value, dict):
        return None
    given = value.get("not_inspected")
    reasons = given if isinstance(given, dict) else {}
    names = [reason.name.lower() for reason in Inspection if reason not in _READ]
    counts = {name: count for name in names if (count := _count(reasons.get(name)))}
    rule = value.get("rule")
    known = {name.value: name for name in StatusRule}
    return InspectionNote(
        known.get(rule) if isinstance(rule, str) else None,
        InspectionTally(_count(value.get("inspected")), counts, _count(value.get("tool_results"))),
    )


def _count(value: object) -> int:
    """Return a peer's count; 0 if the value is no count."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_COUNT
    return value if is_count and isinstance(value, int) else 0
