"""Observation: the results of one probe of an agent.

Three layers give three separate facts: whether a card is served (discovery), whether the declared interface
answers (transport), and whether the agent reports or shows that it works (readiness, message). A prober sends
observations to the registry; `observed` sums them.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from lifesign.domain.health.document import (
    MAX_AGENT_ID_CHARS,
    MAX_NUMBER,
    Count,
    HealthStatus,
    Quantity,
    Ratio,
    Time,
)
from lifesign.domain.observation.assertion import MAX_ASSERTIONS, AssertionResult, Check
from lifesign.domain.observation.login import Login
from lifesign.domain.targets.target import TargetKind
from lifesign.domain.text.safe_text import harmless

MAX_REASON_CHARS: Final = 500
MAX_URL_CHARS: Final = 2048
MAX_ETAG_CHARS: Final = 512
MAX_NETWORK_CLASS_CHARS: Final = 64
MAX_ADDRESS_CHARS: Final = 64
NETWORK_CLASS_PATTERN: Final = rf"^[A-Za-z0-9_.:/-]{{1,{MAX_NETWORK_CLASS_CHARS}}}$"
NetworkClassName = Annotated[str, Field(pattern=NETWORK_CLASS_PATTERN)]
"""`this_machine`, `public_ipv4`, `public_ipv6`, a network such as `10.1.0.0/16`, or `unknown`."""
ProbedAddress = Annotated[str, Field(pattern=rf"^[0-9A-Fa-f.:/]{{1,{MAX_ADDRESS_CHARS}}}$")]
"""An IPv4 or IPv6 address, or an IPv6 /64 network."""
MAX_PATHS: Final = 8
MAX_PATH_CHARS: Final = 512
AGENT_ID_PATTERN: Final = r"^[A-Za-z0-9._~:-]{1,128}$"
"""The registry's own ids; an agent's id in its own document is `reported_agent_id`."""
URL_PATTERN: Final = r"^https?://[!-~]+$"
_SENT_ONCE: Final = frozenset({"message", "tool"})
PATH_PATTERN: Final = r"^/[!-~]*$"
EVIDENCE_PATTERN: Final = "^[0-9a-f]{64}$"


class ResultClass(StrEnum):
    """Result of one request to an agent.

    Only `ok` says something about the agent's health, and then the document decides: a failed request means
    unknown, not unhealthy (draft, appendix A).
    """

    OK = "ok"
    """The answer was read and is as expected."""
    GATED = "gated"
    """401, 402, 403, 407, or an A2A answer of that meaning: credentials or payment are required first."""
    CREDENTIALS_REJECTED = "credentials_rejected"
    """401, 403, 414 or 431 although a credential was sent.

    The prober's configuration is at fault. The answer counts as `gated`.
    """
    TOKEN_ERROR = "token_error"  # noqa: S105 - a result
    """401 or 403 to a request without a credential, because the prober got no token for it.

    Another failure that such an answer states counts alike, up to status 500. The prober's configuration is
    at fault. The answer counts as `gated`.
    """
    NOT_AN_AGENT = "not_an_agent"
    """404, 410, a page for people, an empty answer, or JSON of another kind."""
    INVALID_DOCUMENT = "invalid_document"
    """The answer is of the expected kind, but breaks its rules."""
    STALE_DOCUMENT = "stale_document"
    """A valid health document, but too old to show the present state, or from the future."""
    REFUSED = "refused"
    """No connection: the port is closed, or there is no route."""
    TIMEOUT = "timeout"
    """The request was not finished before its deadline."""
    DNS_FAILURE = "dns_failure"
    """The host name has no address."""
    TLS_FAILURE = "tls_failure"
    """No trustworthy connection: an invalid certificate, or a failed handshake."""
    HTTP_ERROR = "http_error"
    """Status 5xx, another status that is not an answer, or not HTTP at all."""
    TOO_LARGE = "too_large"
    """The body or the header exceeds the prober's limits."""
    REDIRECT_REFUSED = "redirect_refused"
    """A redirect that the prober does not follow: to another origin, to plain HTTP, or in a loop."""
    RATE_LIMITED = "rate_limited"
    """429: too many requests, of this prober or of others."""
    BLOCKED_ADDRESS = "blocked_address"
    """The host is, or resolves to, an address that may not be contacted; nothing was sent."""
    INTERNAL = "internal"
    """The fault is ours: a defect, or no resources left."""
    NOT_MEASURED = "not_measured"
    """No result: nothing was requested, or nothing proves that the prober could have reached the target."""


class InconclusiveReason(StrEnum):
    """Reason, for programs, why a probe measured nothing."""

    NO_WITNESS = "no_witness"
    """The target failed, and nothing else proved that the prober could have reached it."""
    PROBER_SLOW = "prober_slow"
    """The request timed out while the prober itself was overloaded or stopped."""
    ASKED_TO_WAIT = "asked_to_wait"
    """The target asked for no requests before a later time."""
    NOT_ALLOWED = "not_allowed"
    """robots.txt, the address or an opt-out forbids the request."""
    NOT_PROBED = "not_probed"
    """The probe did not take place, or its result was lost."""
    PROBER_CLOCK = "prober_clock"
    """Only the date of a certificate failed, and the prober's clock is wrong, or no witness confirmed it."""
    PROBER_FAULT = "prober_fault"
    """A defect of the prober ended the probe."""
    NO_CREDENTIAL = "no_credential"
    """The target asked for a credential that another prober has, and this one lacks."""


CREDENTIAL_FAULTS: Final = frozenset({ResultClass.CREDENTIALS_REJECTED, ResultClass.TOKEN_ERROR})
"""Faults of the prober's configuration: the server answered, and what is behind the login is unknown."""
REFUSED_LOGIN: Final = frozenset({ResultClass.GATED}) | CREDENTIAL_FAULTS
"""Results of a server that wants a login, or another one."""
ANSWERED: Final = frozenset({ResultClass.OK}) | REFUSED_LOGIN
"""Results of a server that answered."""
# Looking up a member through its Enum takes 75 ns, and every probe uses this one.
_OK: Final = ResultClass.OK
INCONCLUSIVE: Final = frozenset({
    ResultClass.BLOCKED_ADDRESS,
    ResultClass.REDIRECT_REFUSED,
    ResultClass.RATE_LIMITED,
    ResultClass.INTERNAL,
    ResultClass.NOT_MEASURED,
})  # fmt: skip
"""The probe measured nothing: neither that the agent works nor that it fails."""
_UNMEASURED: Final = MappingProxyType({
    ResultClass.BLOCKED_ADDRESS:  InconclusiveReason.NOT_ALLOWED,
    ResultClass.REDIRECT_REFUSED: InconclusiveReason.NOT_ALLOWED,
    ResultClass.RATE_LIMITED:     InconclusiveReason.ASKED_TO_WAIT,
    ResultClass.INTERNAL:         InconclusiveReason.PROBER_FAULT,
    ResultClass.NOT_MEASURED:     InconclusiveReason.NOT_PROBED,
})  # fmt: skip
# A whole host may redirect to another origin, where cards are looked for, and documents never are.
_ANOTHER_TIME: Final = INCONCLUSIVE - {ResultClass.REDIRECT_REFUSED}


def _without_unprintable(text: object) -> object:
    """Replace characters that break terminals, pages and databases: these texts quote a peer.

    This runs before any check, so that half a surrogate pair cannot make a prober fail.
    """
    return harmless(text) if isinstance(text, str) else text


# After the length limit of a text: limits after it would be calls of Python functions.
_QUOTED: Final = BeforeValidator(_without_unprintable)
# Without the serializer that writes 12.0 as 12, as for a `Quantity`: an observation has a dozen of these.
_Milliseconds = Annotated[float, Field(strict=True, ge=0, le=MAX_NUMBER, allow_inf_nan=False)]


class _Wire(BaseModel):
    """Wire format from prober to registry: immutable, without unknown members or lenient conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Phases(_Wire):
    """Duration in ms of each phase of a layer's last request; None for a phase that did not happen."""

    dns_ms: _Milliseconds | None = None
    """Time until the name was resolved; None if the address was known or given."""
    connect_ms: _Milliseconds | None = None
    """Time until the TCP connection was open; None for an existing connection."""
    tls_ms: _Milliseconds | None = None
    """Time of the TLS handshake; None without TLS or for an existing connection."""
    first_byte_ms: _Milliseconds | None = None
    """Time from the request's last byte to the answer's first."""
    last_byte_ms: _Milliseconds | None = None
    """Time from the answer's first byte to its last."""


class LayerResult(_Wire):
    """Result of one layer of a probe, with status, latency and other evidence."""

    result: Annotated[ResultClass, Field(strict=False)]
    """Name of the result, also if JSON was parsed before."""
    reason: Annotated[str, Field(max_length=MAX_REASON_CHARS), _QUOTED] = ""
    """Finding, for people, up to 500 characters; empty if the class is sufficient."""
    status_code: Annotated[int, Field(ge=100, le=599)] | None = None
    """The HTTP status; None without an answer."""
    latency_ms: _Milliseconds | None = None
    """Time to the end of the answer, 0 or more; None without an answer."""
    phases: Phases | None = None
    evidence: Annotated[str, Field(pattern=EVIDENCE_PATTERN)] | None = None
    """SHA-256 of the bytes that were seen, under which the prober keeps them; None if it does not."""

    @property
    def is_measured(self) -> bool:
        """Whether the result says something about the agent."""
        return self.result not in INCONCLUSIVE

    @property
    def has_answered(self) -> bool:
        """Whether a server answered, even if it asked for credentials or payment."""
        return self.result in ANSWERED

    @property
    def has_failed(self) -> bool:
        """Whether the layer was measured and no agent answered.

        A stale document is no failure: it only makes the health unknown.
        """
        return self.is_measured and not self.has_answered and self.result is not ResultClass.STALE_DOCUMENT


class ProbedDocument(_Wire):
    """What is stored of a valid health document."""

    status: Annotated[HealthStatus, Field(strict=False)]
    timestamp: Time
    """When the agent computed it, by the agent's clock."""
    is_stale: bool = False
    """Whether the document was too old, or too far in the future, when it was read (`decision.is_stale`)."""
    is_renewed: bool = False
    """Whether its `timestamp` is later than that of the document that the target's last probe read."""
    age_s: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Age of the document when it was served, by the server's clock (the answer's `Date`).

    None if the answer has no `Date`; the prober's clock decides then.
    """
    max_age_s: Quantity | None = None
    """The answer's `Cache-Control: max-age` in seconds, 0 or more."""
    response_ratio: Ratio | None = None
    """Share of interactions that got a valid answer, as the agent reports, 0 to 1."""
    sample_count: Count | None = None
    """Number of interactions behind the ratio."""
    error_ratio: Ratio | None = None
    """Share of interactions that failed, as the agent reports, 0 to 1."""
    latency_p50_ms: Quantity | None = None
    """As the agent reports."""
    latency_p99_ms: Quantity | None = None
    """As the agent reports."""


_Path = Annotated[str, Field(max_length=MAX_PATH_CHARS, pattern=PATH_PATTERN)]
_LAYERS: Final = ("discovery", "transport", "readiness", "message")


class Observation(_Wire):
    """Results of one probe of one agent; a layer that was not probed is None."""

    agent_id: Annotated[str, Field(pattern=AGENT_ID_PATTERN)] | None = None
    """The agent's record; None for a target that has none yet."""
    target_url: Annotated[str, Field(max_length=MAX_URL_CHARS, pattern=URL_PATTERN)] | None = None
    """URL of the target. Give either this member or `agent_id`."""
    observed_at: Time
    """When the probe ended, by the prober's clock."""
    kind: Annotated[TargetKind, Field(strict=False)] | None = None
    """`mcp` if the target was asked as an MCP server; absent: as an A2A agent."""
    discovery: LayerResult | None = None
    """Whether a card is served and readable; of an MCP server: whether it says that it is one."""
    transport: LayerResult | None = None
    """Whether the declared interface, or the endpoint of an MCP server, answers at all."""
    readiness: LayerResult | None = None
    """The health document: a document comes with `ok` and `stale_document`, and only with these."""
    message: LayerResult | None = None
    """A real message, or a tool call of an MCP server, if the probe's definition contains one."""
    tools: LayerResult | None = None
    """The list of an MCP server's tools, if the definition requests it: shown, without effect."""
    document: ProbedDocument | None = None
    reported_agent_id: Annotated[str, Field(min_length=1, max_length=MAX_AGENT_ID_CHARS), _QUOTED] | None = (
        None
    )
    """Name that the agent reports in its document; a claim, never a key."""
    card_etag: Annotated[str, Field(max_length=MAX_ETAG_CHARS), _QUOTED] | None = None
    """The card's entity tag, as it was sent; None if there was none."""
    certificate_expires_at: Time | None = None
    """Expiry of the server's certificate."""
    paths: Annotated[dict[_Path, LayerResult], Field(max_length=MAX_PATHS)] | None = None
    """Results of further requests of the definition by path, such as /ping: shown, without effect."""
    assertions: (
        Annotated[tuple[AssertionResult, ...], Field(strict=False, max_length=MAX_ASSERTIONS)] | None
    ) = None
    """Results of the target's assertions, in the order of the definition; absent if it has none."""
    login: Login | None = None
    """Login that the target asked for, if it refused a request. It has no effect on the result."""
    inconclusive_reason: Annotated[InconclusiveReason, Field(strict=False)] | None = None
    """Reason why nothing was measured, if `result` is inconclusive; absent: `result` alone decides the
    reason.
    """
    network_class: NetworkClassName | None = None
    """Network class of the target's address (`network_class.network_class_of`); None if unknown."""
    address: ProbedAddress | None = None
    """Address that was contacted, IPv6 as its /64 network (`network_class.address_key`); None if unknown."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if (self.agent_id is None) == (self.target_url is None):
            raise PydanticCustomError("one_subject", "expected exactly one of agent_id and target_url")
        result = self.readiness.result if self.readiness is not None else None
        if (result in {ResultClass.OK, ResultClass.STALE_DOCUMENT}) != (self.document is not None):
            raise PydanticCustomError(
                "document_and_readiness", "readiness `ok` or `stale_document` and a document go together"
            )
        if self.document is not None and self.document.is_stale != (result is ResultClass.STALE_DOCUMENT):
            raise PydanticCustomError(
                "stale_or_not", "the document's is_stale contradicts the result of readiness"
            )
        return self

    @property
    def is_liveness_signal(self) -> bool:
        """Whether the agent is alive: card `ok`, interface `ok` or `gated`, or a valid document.

        The document's status does not matter: an agent that reports unhealthy is alive.

        An answered message proves the same as an answering interface. A gated card or document shows a gate,
        not an agent. A stale document may be left over from a dead one, unless it was renewed since the last
        probe: then only a clock is wrong.
        """
        if self.identifies_agent or self.has_renewed_document:
            return True
        transport, message = self.transport, self.message
        return (transport is not None and transport.has_answered) or (
            message is not None and message.has_answered
        )

    @property
    def is_measured_failure(self) -> bool:
        """Whether the probe gave no liveness signal, and its deciding layer failed."""
        last = None if self.is_liveness_signal else decisive(self._requested_layers())
        return last is not None and last.has_failed

    @property
    def has_wrong_answer(self) -> bool:
        """Whether an assertion failed that can make the agent unhealthy, and that a second request repeats.

        A message or a tool call is not sent a second time.
        """
        return any(
            each.has_failed and not each.is_gradual and each.of not in _SENT_ONCE
            for each in self.assertions or ()
        )

    @property
    def has_late_answer(self) -> bool:
        """Whether an assertion about the latency of an answer failed."""
        return any(each.has_failed and each.check is Check.LATENCY_BELOW for each in self.assertions or ())

    def without_late_answers(self) -> "Observation":
        """Return the observation with failed assertions about latency marked as not measured."""
        assertions = tuple(
            each.discounted() if each.check is Check.LATENCY_BELOW else each for each in self.assertions or ()
        )
        return self.model_copy(update={"assertions": assertions})

    @property
    def result(self) -> ResultClass:
        """Result of the whole probe as one class.

        With a liveness signal `ok` or `gated`, or `stale_document` if there is no other; else the result of
        the `decisive` layer; `not_measured` if no layer was probed.
        """
        if self.identifies_agent:
            return _OK
        requested = self._requested_layers()
        if self.is_liveness_signal:
            if any(layer.result is ResultClass.OK for _, layer in requested):
                return ResultClass.OK
            has_answered = any(layer.has_answered for _, layer in requested)
            return ResultClass.GATED if has_answered else ResultClass.STALE_DOCUMENT
        last = decisive(requested)
        if last is None:
            return ResultClass.NOT_MEASURED
        return ResultClass.GATED if last.result in CREDENTIAL_FAULTS else last.result

    def result_with_card(self, card: ResultClass | None) -> ResultClass:
        """Return the result of the whole probe, if `card` is the known result of a card not requested now.

        None: no card.

        A card is read once a day, and is valid until it is read again: the class must not change between
        probes only because one of them requested the card.
        """
        result = self.result
        has_card = self.discovery is None and card is _OK
        return _OK if has_card and result is ResultClass.GATED else result

    def discounted(
        self,
        inconclusive_reason: InconclusiveReason,
        why: str,
        *,
        layers: Collection[str] | None = None,
        with_answers: bool = False,
    ) -> "Observation":
        """Return the observation with failed layers and assertions marked as not measured, for this reason.

        Their classes and reasons stay as text.

        `why` is for people. `layers` are the names of the layers that may change, None: all. Layers that
        answered stay unchanged, unless `with_answers`. Returns the observation itself if nothing changes.
        """
        changed: dict[str, object] = {
            name: _discounted_layer(layer, why)
            for name in (_LAYERS if layers is None else layers)
            if (layer := getattr(self, name)) is not None
            and (layer.has_failed or (with_answers and layer.has_answered))
        }
        assertions = self.assertions or ()
        if not changed and not any(each.has_failed for each in assertions):
            return self
        if assertions:
            # What may not come from the target proves nothing against its answers.
            changed["assertions"] = tuple(each.discounted() for each in assertions)
        discounted = self.model_copy(update=changed)
        return (
            discounted.model_copy(update={"inconclusive_reason": inconclusive_reason})
            if discounted.result in INCONCLUSIVE
            else discounted
        )

    def layers_with(self, result: ResultClass) -> tuple[str, ...]:
        """Return the names of the layers that have this result."""
        return tuple(name for name, layer in self._requested_layers() if layer.result is result)

    @property
    def identifies_agent(self) -> bool:
        """Whether card or document are as expected, as for most living agents."""
        return _is(self.discovery, _OK) or _is(self.readiness, _OK)

    @property
    def has_renewed_document(self) -> bool:
        """Whether a running process computed the document, even if a wrong clock makes it stale."""
        return self.document is not None and self.document.is_renewed

    def _requested_layers(self) -> Sequence[tuple[str, LayerResult]]:
        layers = (self.discovery, self.transport, self.readiness, self.message)
        return [(name, layer) for name, layer in zip(_LAYERS, layers, strict=True) if layer is not None]


def decisive(requested: Sequence[tuple[str, LayerResult]]) -> LayerResult | None:
    """Return the layer that decides the result of a probe without a liveness signal; None without layers.

    The first failure that counts, else the first measured layer, else the first; None if none was requested.
    """
    layers = dict(requested)
    counting = [layer for name, layer in requested if not _is_uninformative(name, layer, layers)]
    for layer in counting:
        if layer.has_failed:
            return layer
    return next((layer for layer in counting if layer.is_measured), counting[0] if counting else None)


def deciding(layers: Mapping[str, LayerResult | None]) -> LayerResult | None:
    """Return the layer whose result is that of the whole probe; None if no layer was requested."""
    for name in ("discovery", "readiness"):
        if _is(layer := layers[name], _OK):
            return layer
    for name in ("transport", "message"):
        if (layer := layers[name]) is not None and layer.has_answered:
            return layer
    return decisive([(name, layer) for name in _LAYERS if (layer := layers[name]) is not None])


def _is_uninformative(name: str, layer: LayerResult, layers: Mapping[str, LayerResult]) -> bool:
    """Return whether a failure is not the agent's: of card and document, one may be absent.

    A health document is optional: without one, nothing is known about an agent whose card could not be
    requested, or needs credentials. The same holds for a missing card if the document could not be requested.
    """
    if not layer.has_failed:
        return False
    if name == "readiness":
        card = layers.get("discovery")
        return card is not None and not card.has_failed
    if name == "discovery" and layer.result is ResultClass.NOT_AN_AGENT:
        document = layers.get("readiness")
        return document is not None and document.result in _ANOTHER_TIME
    return False


def _is(layer: LayerResult | None, result: ResultClass) -> bool:
    return layer is not None and layer.result is result


def _discounted_layer(layer: LayerResult, why: str) -> LayerResult:
    reason = f"{why} ({layer.result}{f': {layer.reason}' if layer.reason else ''})"
    return LayerResult(result=ResultClass.NOT_MEASURED, reason=reason[:MAX_REASON_CHARS])


def reason_of_inconclusive(result: ResultClass) -> InconclusiveReason | None:
    """Return why a result measured nothing, as far as its class shows; None if it measured something."""
    return _UNMEASURED.get(result)


def not_measured(
    observed_at: datetime,
    inconclusive_reason: InconclusiveReason,
    why: str,
    *,
    agent_id: str | None = None,
    target_url: str | None = None,
) -> Observation:
    """Return the observation of a probe that was due but did not take place; `why` is for people."""
    layer = LayerResult(result=ResultClass.NOT_MEASURED, reason=why[:MAX_REASON_CHARS])
    return Observation(
        agent_id=agent_id,
        target_url=target_url,
        observed_at=observed_at,
        discovery=layer,
        inconclusive_reason=inconclusive_reason,
    )
