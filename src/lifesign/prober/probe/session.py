"""One probe of one target in progress: its requests, its deadline and its findings.

All requests of a probe pass through here. A host that cannot be reached, or that asked for a wait, is not
requested again, and the whole probe ends at one deadline.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from yarl import URL

from lifesign.client.candidate_urls import CandidateUrl, ParsedAgentUrl, parse_agent_url, place_under
from lifesign.domain.credentials.acceptance import CredentialState
from lifesign.domain.credentials.request_scope import SENDING, Purpose, Sending
from lifesign.domain.credentials.secret import MIN_SECRET_CHARS, REMOVED, Scrubber
from lifesign.domain.observation.probe_memory import MAX_IN_ROW
from lifesign.domain.observation.results import (
    MAX_REASON_CHARS,
    REFUSED_LOGIN,
    LayerResult,
    ProbedDocument,
    ResultClass,
)
from lifesign.domain.targets.target import TargetKind, is_on_origin_of
from lifesign.http_client.redirects import is_same_origin
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.network.host_limiter import AddressBusy
from lifesign.prober.network.request import Method, Request
from lifesign.prober.probe.authenticated_request import (
    credential_state,
    is_page,
    may_ask_for_login,
    rejection,
    send_after_refusal,
    send_with_credential,
    with_credential_fault,
)
from lifesign.prober.probe.probe_credentials import ProbeCredentials
from lifesign.prober.probe.robots_of_other_origins import OtherOrigins
from lifesign.prober.probe.robots_rules import (
    MAX_ROBOTS_BYTES,
    ROBOTS_ACCEPT,
    ROBOTS_PATH,
    RobotsRules,
    may_fetch,
)
from lifesign.prober.reachability.target_contact import Exchange
from lifesign.prober.registry_exchange.ledger import TargetEntry
from lifesign.prober.secrets.credential_store import Credential, CredentialStore

if TYPE_CHECKING:
    from lifesign.domain.mcp.conversation import McpReply
    from lifesign.domain.observation.assertion import Assertion
    from lifesign.domain.published_interface.published import Interface

REQUESTS_IN_TIME: Final = 3
"""Time limit of a whole probe, as a multiple of the limit of one request."""
MAX_TIMEOUTS: Final = 2
"""Number of requests without an answer after which a host is not requested again in this probe."""
MAX_OTHER_ORIGINS: Final = 4
"""Maximum number of other origins per probe, by redirects of a card and by its interface."""
FOREIGN_RULES_RATIO: Final = 1 / 3
"""Share of one request's time that robots.txt of another origin may take."""
NOT_FOUND: Final = 404
MAX_STATUS: Final = 599
"""Maximum of standard status codes; higher ones appear only in the reason."""

ALTERED: Final = "the answer contained a secret of the prober, which was removed"
"""Reason for failures that may be due to this."""
REMOVED_URL: Final = URL(f"https://{REMOVED.lower()}/")
"""Stands for a URL that contains a secret."""
_OF_ALTERED: Final = frozenset({
    ResultClass.NOT_AN_AGENT, ResultClass.INVALID_DOCUMENT, ResultClass.REDIRECT_REFUSED,
})  # fmt: skip

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
# The host cannot be reached, or must not be contacted.
_OUT_OF_REACH: Final = frozenset({
    ResultClass.REFUSED, ResultClass.DNS_FAILURE, ResultClass.TLS_FAILURE, ResultClass.BLOCKED_ADDRESS,
})  # fmt: skip


class Fetches(Protocol):
    """Sends requests. Failures of the peer are part of the result, and not raised."""

    async def fetch(self, request: Request) -> Fetched:
        """Send a request and return its result; AddressBusy if its address is at the limit of probes."""
        ...


class EvidenceSink(Protocol):
    """Stores the bodies of answers as evidence."""

    def keep(self, body: bytes) -> str | None:
        """Store bytes as evidence and return their SHA-256; None if they could not be stored."""
        ...


class ProbeSession:
    """One probe of one target in progress: its requests, limits and results so far."""

    interface: "Interface | None" = None
    """Published interface, if it is not the one that was read before."""
    kind: TargetKind | None = None
    """MCP if the target is asked as an MCP server; None: as an A2A agent."""
    server_reply: "McpReply | None" = None
    """Answer of an MCP server to `server/discover` or `initialize`."""

    has_altered = False
    """Whether a secret was removed from an answer."""

    def __init__(
        self,
        fetcher: Fetches,
        definition: ProbeDefinition,
        evidence: EvidenceSink | None,
        entry: TargetEntry,
        at_s: float,
        *,
        others: OtherOrigins | None = None,
        credentials: CredentialStore | None = None,
        deadline_s: float | None = None,
        is_named: bool = False,
    ) -> None:
        """`others`: robots.txt rules of other origins; None if robots.txt is not followed.

        `is_named`: whether the definition itself names the target.

        `deadline_s`: end of the probe by the event loop's clock; None: REQUESTS_IN_TIME from now.
        """
        self.entry = entry
        self.definition = definition
        self.at_s = at_s
        """Start of the probe, in seconds since the epoch."""
        self.learned: dict[str, Any] = {}
        """Facts to remember, by the names of `ProbeMemory`."""
        self.checks: tuple[Assertion, ...] = ()
        """Assertions of the target."""
        self.asks_card = False
        """Whether the card is requested, so that changed URLs are noticed."""
        self.has_found_another = False
        """Whether the given address has no card, and the origin's root has another agent's card."""
        self.card_place: URL | None = None
        """URL of the card after redirects; None if there is none."""
        self.health_places: tuple[CandidateUrl, ...] = ()
        """Places of the health document according to a card that was parsed in this probe."""
        self.has_seen_page = False
        """Whether the interface answered with a page for people."""
        self.tool_result: Mapping[str, Any] | None = None
        """Result of the tool call, if there was one."""
        self.card_etag: str | None = None
        self.document: ProbedDocument | None = None
        self.reported_agent_id: str | None = None
        self.certificate_expires_at: datetime | None = None
        self.retry_after_s: float | None = None
        """Longest requested wait."""
        self.robots: RobotsRules | None = None
        """Rules of the target's own host, if they were read in this probe."""
        self.requests = 0
        self.exchanges: list[Exchange] = []
        """Requests of this probe in their order."""
        self.deciding: LayerResult | None = None
        """The layer that decides the result of the probe, once that is known."""
        self._layers: list[tuple[LayerResult, Fetched, int]] = []
        """Layers, each with the request that it is read from, and the number of requests up to that one."""
        self._fetcher = fetcher
        self._evidence = evidence
        self._others = others
        self.credentials = ProbeCredentials(
            CredentialStore() if credentials is None else credentials, entry.url, is_named=is_named
        )
        self._led_to: set[URL] = set()
        """Origins besides the target's own."""
        self._total_s = definition.timeouts.total_seconds
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self.deadline_s = deadline_s or self._began_s + REQUESTS_IN_TIME * self._total_s
        self._left_alone: dict[URL, int] = {}
        """Number of unanswered requests by origin; MAX_TIMEOUTS and more if it is not requested again."""
        self._is_at_an_end = False

    @cached_property
    def given(self) -> ParsedAgentUrl:
        """The target's URL, parsed."""
        return parse_agent_url(self.entry.url)

    @property
    def now(self) -> datetime:
        """Present time, counted from the begin of the probe by a clock that is never set."""
        return datetime.fromtimestamp(self.at_s + self._loop.time() - self._began_s, UTC)

    @property
    def keeps_evidence(self) -> bool:
        """Whether bodies are stored as evidence."""
        return self._evidence is not None

    @property
    def is_late(self) -> bool:
        """Whether no time is left for another request."""
        return self._loop.time() >= self.deadline_s

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline of the probe; negative after it."""
        return self.deadline_s - self._loop.time()

    def recall(self, name: str) -> Any:
        """Return a value of the target's memory, or what this probe has learned in its place."""
        if name in self.learned:
            return self.learned[name]
        return getattr(self.entry.memory, name)

    def may_ask(self, url: URL, *, despite_timeouts: bool = False) -> bool:
        """Return whether `ask` would send a request to this URL."""
        if self._is_at_an_end or self.is_late:
            return False
        return despite_timeouts or self._timeouts(url) < MAX_TIMEOUTS

    def is_authoritative(self, place: str) -> bool:
        """Return whether an answer from the URL `place` says something about this target.

        Another origin may belong to a third party, and be alive when the target is not: it counts only
        together with a card that was read in this probe.
        """
        return self.card_place is not None or is_on_origin_of(place, str(self.given.url))

    def is_silent(self, url: URL) -> bool:
        """Return whether a request to the URL's origin has timed out in this probe."""
        return self._timeouts(url) > 0

    async def ask(
        self,
        url: URL,
        *,
        max_bytes: int,
        method: Method = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
        accept: str = "application/json",
        etag: str | None = None,
        may_leave_origin: bool = False,
        is_head_enough: bool = False,
        needs_any_body: bool = False,
        is_part_enough: bool = False,
        is_aside: bool = False,
        despite_timeouts: bool = False,
        is_enough: Callable[[bytes, Scrubber], bool] | None = None,
        has_secret: bool = False,
        purpose: Purpose = Purpose.OTHER,
    ) -> Fetched | None:
        """Send a request; None if robots.txt forbids it or no time is left.

        `is_aside`: a missing answer is no evidence about the host's other paths. `despite_timeouts`: sent
        although earlier requests had no answer. `is_enough`, `needs_any_body`, `has_secret`: see `Request`.
        `purpose` decides whether the request carries a credential. A refused card or document is requested
        again with its credential.
        """
        has_credentials = self.credentials.are_defined
        request_with = partial(
            Request,
            url=url,
            method=method,
            body=body,
            headers=headers,
            etag=etag,
            max_bytes=max_bytes,
            deadline_s=self.deadline_s,
            may_leave_origin=may_leave_origin,
            is_head_enough=is_head_enough,
            needs_any_body=needs_any_body,
            is_part_enough=is_part_enough,
            accept=accept,
            is_enough=is_enough,
            has_secret=has_secret,
            known_credentials=self.credentials.received if has_credentials else (),
            card_schemes=self.recall("card_schemes") or (),
            kept_out=self._robots_exclusion,
            needs_new_connection=self.entry.is_repeat,
        )
        send = partial(self._ask, url, request_with, is_aside=is_aside, despite_timeouts=despite_timeouts)
        sending = SENDING[purpose] if has_credentials else Sending.NEVER
        fetched = None
        if sending is not Sending.ALWAYS:
            fetched = await send()
            if fetched is None or sending is Sending.NEVER:
                return fetched
            if fetched.result is ResultClass.OK and not is_page(fetched):
                return fetched
            if purpose is Purpose.HEALTH and fetched.status == NOT_FOUND:
                # Most agents have no document.
                return fetched
        has_read_card = self.recall("card_read_at_s") is not None
        credential, withheld = self.credentials.for_request(url, purpose, has_read_card=has_read_card)
        if credential is None and has_secret:
            reason = "its URL contains a secret, which is not sent there"
            fetched = Fetched(url=url, result=ResultClass.NOT_MEASURED, reason=reason, is_reached=False)
        if credential is None:
            is_withheld = withheld is not None and (
                # A card that is missing has failed: each agent has one.
                fetched is None or (fetched.status != NOT_FOUND and may_ask_for_login(fetched))
            )
            fetched = fetched or await send()
            return replace(fetched, withheld=withheld) if fetched is not None and is_withheld else fetched
        seconds = self._deadline(self._total_s) - self._loop.time()
        if fetched is None:
            return await send_with_credential(send, credential, seconds)
        return await send_after_refusal(fetched, send, url, credential, seconds)

    async def _ask(
        self,
        url: URL,
        request_with: Callable[..., Request],
        *,
        is_aside: bool,
        despite_timeouts: bool,
        credential: Credential | None = None,
    ) -> Fetched | None:
        """Send one request to a URL; `request_with` returns it, with this credential."""
        if self.has_altered and self.has_removed(str(url)):
            # It is not the URL that the target named.
            return Fetched(url=url, result=ResultClass.NOT_MEASURED, reason=ALTERED, is_reached=False)
        if not self.may_ask(url, despite_timeouts=despite_timeouts):
            return None
        try:
            if (why := await self._robots_exclusion(url)) is not None:
                return Fetched(
                    url=url,
                    result=ResultClass.NOT_MEASURED,
                    reason=why,
                    is_reached=False,
                    is_opted_out=True,
                )
            sent_at_s = self._loop.time()
            if credential is not None:
                self.credentials.note_sent(credential)
            request = request_with(credential=credential)
            fetched = await self._fetcher.fetch(request)
        except AddressBusy:
            if not self.requests:
                raise
            # The results so far are kept if an interface on another origin is slow.
            self._left_alone[url.origin()] = MAX_TIMEOUTS
            return None
        self.requests += 1
        self.exchanges.append(Exchange(fetched, sent_at_s, request.has_secret))
        self.has_altered |= fetched.is_altered
        # The host may want the client certificate, which this request did not have.
        may_want_one = (
            fetched.result is ResultClass.TLS_FAILURE
            and credential is None
            and self.credentials.has_certificate_for(fetched.url)
        )
        if not may_want_one:
            self._note_answer(fetched, is_aside=is_aside)
        return fetched

    def layer(
        self,
        fetched: Fetched,
        result: ResultClass | None = None,
        reason: str | None = None,
        evidence: str | None = None,
    ) -> LayerResult:
        """Return a layer's result from a request; `result` and `reason` replace those of the request.

        A refusal of a request with a credential is `credentials_rejected`, and one without it, for want of a
        token, `token_error`.
        """
        status = fetched.status
        result = result or fetched.result
        # Parsing may have put together a secret that was escaped in the body.
        reason = fetched.reason if reason is None else fetched.scrubber.clean_text(reason)
        result, reason = with_credential_fault(fetched, result, reason)
        if fetched.is_altered and result in _OF_ALTERED:
            result, reason = ResultClass.NOT_MEASURED, ALTERED
        layer = LayerResult(
            result=result,
            reason=reason[:MAX_REASON_CHARS],
            status_code=status if status is not None and 100 <= status <= MAX_STATUS else None,
            latency_ms=fetched.latency_ms or None,
            phases=fetched.phases,
            evidence=evidence,
        )
        sent = [number for number, each in enumerate(self.exchanges, 1) if each.fetched is fetched]
        # A changed copy of a result is not in the list: it belongs to the last request.
        self._layers.append((layer, fetched, sent[0] if sent else len(self.exchanges)))
        if (state := credential_state(fetched, result)) is not None:
            is_rejected = state is CredentialState.CREDENTIALS_REJECTED
            detail = (
                ", ".join(filter(None, (rejection(fetched), fetched.token_fault))) if is_rejected else None
            )
            # Without the redirect to a login page, the next answer comes from another URL.
            place = fetched.redirected_from or fetched.url
            self.credentials.note_use(place, state, fetched.credential, detail)
        return layer

    def changed(self, layer: LayerResult, result: ResultClass, reason: str) -> LayerResult:
        """Return a layer with another result and reason. It still belongs to the same request."""
        other = layer.model_copy(update={"result": result, "reason": reason})
        self._layers += [(other, fetched, sent) for each, fetched, sent in self._layers if each is layer]
        return other

    def fetched_for(self, layer: LayerResult) -> Fetched | None:
        """Return the request from which a layer's result comes; None if there is none."""
        return next((fetched for each, fetched, _ in self._layers if each is layer), None)

    def exchanges_after(self, layer: LayerResult) -> Sequence[Exchange]:
        """Return the requests that were sent after the one from which a layer's result comes."""
        sent = next((sent for each, _, sent in self._layers if each is layer), len(self.exchanges))
        return self.exchanges[sent:]

    @property
    def refusal(self) -> Fetched | None:
        """Return a request that the target refused for lack of credentials; None if there is none."""
        refused = [fetched for layer, fetched, _ in self._layers if layer.result in REFUSED_LOGIN]
        return next((each for each in refused if each.challenges), refused[0] if refused else None)

    def is_without_credential(self, fetched: Fetched) -> bool:
        """Return whether a request was sent without the credential that belongs to it.

        The server may then omit parts of its answer, or answer with a login page.
        """
        if fetched.token_fault is not None or fetched.withheld is not None:
            return True
        missing = self.credentials.missing_for(str(fetched.url))
        if missing is None or fetched.credential is None:
            return missing is not None
        # A credential of a shorter path may be sufficient. At the same place, another target may have
        # rejected the credential that this request carried.
        is_accepted = fetched.status is not None and fetched.status // 100 == 2
        place = self.credentials.named(fetched.credential).scope.place
        return place != missing.scope.place and not is_accepted

    def has_removed(self, text: str) -> bool:
        """Return whether a text from an answer of this probe may stand for one that contained a secret."""
        # The shortest replacement; hosts are in lower case.
        return self.has_altered and REMOVED[:MIN_SECRET_CHARS].lower() in text.lower()

    def unless_secret(self, url: URL, fetched: Fetched) -> URL:
        """Return a URL that an answer names; if it contains a secret, one that is never requested.

        A secret may only show once the URL is parsed: in a host of other letters, or after dot segments.
        """
        if not fetched.scrubber.is_quoted_in(str(url)):
            return url
        self.has_altered = True
        return REMOVED_URL

    def keep(self, body: bytes) -> str | None:
        """Store bytes as evidence if the prober keeps it; return their SHA-256."""
        return self._evidence.keep(body) if self._evidence is not None and body else None

    def note_disallowed(self) -> None:
        """Note that the target's own robots.txt forbids its probe."""
        in_row = min(self.entry.memory.disallowed_in_row + 1, MAX_IN_ROW)
        self.learned |= {"is_disallowed_by_robots": True, "disallowed_in_row": in_row}

    async def _robots_exclusion(self, url: URL) -> str | None:
        """Return why robots.txt excludes a URL; None if it does not, or has no rule for it."""
        has_rules = self.robots is not None or self._others is not None
        if not has_rules or url.raw_path_qs == ROBOTS_PATH:
            return None
        if not is_same_origin(url, self.given.url):
            return None if self._others is None else await self._other_origin_exclusion(self._others, url)
        # `robots_of_target` has already checked the URLs that were known before the card was read.
        if self.robots is None or may_fetch(self.robots, url.raw_path_qs):
            return None
        self.note_disallowed()
        return "its robots.txt forbids this prober"

    async def _other_origin_exclusion(self, others: OtherOrigins, url: URL) -> str | None:
        """Return why a URL of another origin is excluded."""
        origin = url.origin()
        if origin not in self._led_to and len(self._led_to) == MAX_OTHER_ORIGINS:
            return f"the robots.txt of more than {MAX_OTHER_ORIGINS} other origins would be needed"
        self._led_to.add(origin)
        host = url.host_port_subcomponent
        rules = await others.rules(url, self.at_s, self._read_rules)
        if isinstance(rules, str):
            return f"robots.txt of {host}: {rules}"
        return None if may_fetch(rules, url.raw_path_qs) else f"the robots.txt of {host} forbids this prober"

    async def _read_rules(self, origin: URL) -> Fetched:
        """Request another origin's robots.txt; if that fails, the origin may still be requested."""
        fetched = await self._fetcher.fetch(
            Request(
                url=place_under(origin, "", ROBOTS_PATH),
                max_bytes=MAX_ROBOTS_BYTES,
                deadline_s=self._deadline(self._total_s * FOREIGN_RULES_RATIO),
                may_leave_origin=True,
                is_part_enough=True,
                accept=ROBOTS_ACCEPT,
            )
        )
        self.requests += 1
        if fetched.result is ResultClass.RATE_LIMITED:
            self._note_answer(fetched, is_aside=True)
        return fetched

    def _deadline(self, seconds: float) -> float:
        return min(self._loop.time() + seconds, self.deadline_s)

    def _timeouts(self, url: URL) -> int:
        return self._left_alone.get(url.origin(), 0) if self._left_alone else 0

    def _note_answer(self, fetched: Fetched, *, is_aside: bool) -> None:
        """Note the parts of an answer that apply to the rest of the probe."""
        result = fetched.result
        if fetched.certificate_expires_at is not None and self.certificate_expires_at is None:
            self.certificate_expires_at = fetched.certificate_expires_at
        if fetched.retry_after_seconds is not None:
            self.retry_after_s = max(self.retry_after_s or 0.0, fetched.retry_after_seconds)
        if result is ResultClass.OK:
            return
        if result is ResultClass.INTERNAL:
            # A resource that is missing for one request is missing for the next.
            self._is_at_an_end = True
        elif result in _OUT_OF_REACH or result is ResultClass.RATE_LIMITED:
            self._left_alone[fetched.url.origin()] = MAX_TIMEOUTS
        elif result is ResultClass.TIMEOUT and fetched.status is None:
            # Last origin that was requested, after redirects. If it refused a connection, it will refuse the
            # next one.
            origin = fetched.url.origin()
            silences = MAX_TIMEOUTS if not fetched.is_reached else 0 if is_aside else 1
            self._left_alone[origin] = self._left_alone.get(origin, 0) + silences


def not_measured(reason: str) -> LayerResult:
    """Return the result of a layer that could not be requested, for this reason."""
    return LayerResult(result=ResultClass.NOT_MEASURED, reason=reason)
