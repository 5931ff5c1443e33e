"""Parts of one check: its request, and the answers for the card, the document and the MCP server."""

from dataclasses import dataclass, replace
from typing import Final

from lifesign.client.candidate_urls import ANOTHERS_DOCUMENT, CandidateUrl, ParsedAgentUrl
from lifesign.client.server_detection import DetectedServer
from lifesign.domain.a2a.agent_card import AgentCard
from lifesign.domain.common.finding import Finding
from lifesign.domain.credentials.request_scope import CredentialScope
from lifesign.domain.credentials.secret import Scrubber, scrubber_of
from lifesign.domain.health.document import HealthDocument
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.observation.served_body import classify_card, classify_document
from lifesign.domain.targets.target import TargetKind
from lifesign.http_client.answer import Answer

CARD_SHARE: Final = 0.5
"""Share of the time for the card: a slow one must not hide the health document."""


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """One check of an agent: the given URL, and the deadlines."""

    url: str
    given: ParsedAgentUrl
    started_s: float
    timeout_seconds: float
    token: str | None
    kind: str | None
    identify: bool

    @property
    def token_scope(self) -> CredentialScope:
        """URLs to which the token may be sent, besides the given one: the agent's path and all below it.

        A server's document is below the parent of its path.
        """
        path = self.given.base_path
        if self.kind == TargetKind.MCP:
            path = self.given.url.raw_path.rstrip("/").rpartition("/")[0]
        return CredentialScope(name="token", origin=str(self.given.url.origin()), path=path)

    @property
    def scrubber(self) -> Scrubber:
        """Removes the token from texts; a token that is too short to be found stays in them."""
        return scrubber_of(self.token)

    @property
    def card_deadline_s(self) -> float:
        """Time on the event loop's clock at which to stop waiting for the card."""
        return self.started_s + CARD_SHARE * self.timeout_seconds

    @property
    def deadline_s(self) -> float:
        """Time on the event loop's clock at which the whole check ends."""
        return self.started_s + self.timeout_seconds


@dataclass(frozen=True, slots=True)
class CardAnswer:
    """Answer to a request for the card, and the card if there is one."""

    answer: Answer
    card: AgentCard | None


@dataclass(frozen=True, slots=True)
class HealthAnswer:
    """Answer to a request for the health document, and the document if there is one."""

    answer: Answer
    place: CandidateUrl
    document: HealthDocument | None = None
    findings: tuple[Finding, ...] = ()
    is_at_root: bool = False
    """Whether there is a document at the origin's root, where it counts for another agent."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """Whether the URL is that of an MCP server, with its answer if it was requested."""

    health: HealthAnswer
    is_server: bool
    answer: DetectedServer | None = None


def with_document_at_root(own: HealthAnswer) -> HealthAnswer:
    """Return the agent's answer, with the note that the document at the root is another agent's."""
    reason = f"{own.answer.reason}; {ANOTHERS_DOCUMENT}"
    return replace(own, answer=replace(own.answer, reason=reason), is_at_root=True)


def may_get_token(visit: CheckRequest, place: CandidateUrl) -> bool:
    """Return whether the token may be sent to this URL.

    A card at the origin's root may claim the path of another agent, and name a URL of its own.
    """
    if place.is_root:
        return False
    return place.url == visit.given.url or visit.token_scope.covers(str(place.url))


def assess_card(answer: Answer) -> CardAnswer:
    """Return the card in an answer, or the reason why there is none."""
    if answer.result is not ResultClass.OK:
        return CardAnswer(answer, None)
    served = classify_card(answer.body, is_json=answer.is_json)
    return CardAnswer(replace(answer, result=served.result, reason=served.reason), served.card)


def assess_document(place: CandidateUrl, answer: Answer) -> HealthAnswer:
    """Return the health document in the answer of a URL, or the reason why there is none."""
    if answer.result is not ResultClass.OK:
        return HealthAnswer(answer, place)
    served = classify_document(answer.body, content_type=answer.content_type, is_json=answer.is_json)
    classified = replace(answer, result=served.result, reason=served.reason)
    return HealthAnswer(classified, place, served.document, served.findings)
