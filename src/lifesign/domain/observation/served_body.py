"""Classification of a body: a card, a health document, or neither.

The client that wants to call an agent and the prober use the same rules. They distinguish a broken card or
document, other content, and an answer without useful content.
"""

from dataclasses import dataclass
from typing import Final

from lifesign.domain.a2a.agent_card import AgentCard, CardKind, read_agent_card
from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidDocument
from lifesign.domain.health.document import HealthDocument
from lifesign.domain.health.document_reader import read_document
from lifesign.domain.observation.results import ResultClass

EMPTY_ANSWER: Final = "an empty answer"

_ALWAYS_PRESENT: Final = frozenset({"/schema_version", "/agent_id", "/timestamp", "/health"})
_MIN_DOCUMENT_EVIDENCE: Final = 2
"""Number of the four required members that make JSON a health document, possibly a broken one."""


@dataclass(frozen=True, slots=True)
class ServedCard:
    """What a body at a card's URL is: a valid card, a broken one, or something else."""

    result: ResultClass
    """`ok`, `not_an_agent` or `invalid_document`."""
    reason: str = ""
    """Reason why the body is not one, for people; empty if it is. May quote the peer."""
    card: AgentCard | None = None
    """Given with `ok`, and only then."""


@fast_dataclass()
class ServedDocument:
    """What a body at a health document's URL is: a valid document, a broken one, or something else."""

    result: ResultClass
    """`ok`, `not_an_agent` or `invalid_document`; whether it is stale depends on when it was served."""
    reason: str = ""
    """Reason why the body is not one, for people; empty if it is. May quote the peer."""
    document: HealthDocument | None = None
    """Given with `ok`, and only then."""
    findings: tuple[Finding, ...] = ()
    """Findings about the document, or its faults."""


def classify_card(body: bytes, *, is_json: bool) -> ServedCard:
    """Read a body as an agent card. If the content type is not JSON, it must still read as a card."""
    if not body.strip():
        return ServedCard(ResultClass.NOT_AN_AGENT, EMPTY_ANSWER)
    card = read_agent_card(body)
    if card.kind in {CardKind.CARD, CardKind.REGISTRY_RECORD}:
        return ServedCard(ResultClass.OK, card=card)
    is_broken = card.kind is CardKind.NOT_JSON and is_json
    result = ResultClass.INVALID_DOCUMENT if is_broken else ResultClass.NOT_AN_AGENT
    return ServedCard(result, "; ".join(finding.message for finding in card.findings) or "not a card")


def classify_document(body: bytes, *, content_type: str, is_json: bool) -> ServedDocument:
    """Read a body as a health document, and distinguish a broken document from other content."""
    if not body.strip():
        return ServedDocument(ResultClass.NOT_AN_AGENT, EMPTY_ANSWER)
    if not is_json:
        reason = f"not JSON but {ascii(content_type) if content_type else 'of no content type'}"
        return ServedDocument(ResultClass.NOT_AN_AGENT, reason)
    try:
        document, findings = read_document(body)
    except InvalidDocument as error:
        if _is_of_another_kind(error.faults):
            return ServedDocument(ResultClass.NOT_AN_AGENT, "JSON of another kind than a health document")
        more = f", and {len(error.faults) - 1} more" if len(error.faults) > 1 else ""
        reason = f"the health document is invalid: {error.faults[0]}{more}"
        return ServedDocument(ResultClass.INVALID_DOCUMENT, reason, findings=error.faults)
    return ServedDocument(ResultClass.OK, document=document, findings=findings)


def is_absent(result: ResultClass, status: int | None) -> bool:
    """Return whether there is no such document at a URL, so that the next possible URL is tried."""
    if result is ResultClass.HTTP_ERROR:
        return status is not None and 400 <= status < 500
    return result is ResultClass.NOT_AN_AGENT


def _is_of_another_kind(faults: tuple[Finding, ...]) -> bool:
    missing = {fault.pointer for fault in faults if fault.name == "missing_member"} & _ALWAYS_PRESENT
    is_no_object = any(fault.name == "not_an_object" for fault in faults)
    return is_no_object or len(_ALWAYS_PRESENT) - len(missing) < _MIN_DOCUMENT_EVIDENCE
