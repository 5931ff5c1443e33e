"""One probe of one target: card, interface, health document and message, as one observation.

Three layers give three separate facts (protocol 3): whether a card is served, whether the declared interface
answers, and whether the agent reports or shows that it works. Every behaviour of a peer is an observation.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from yarl import URL

from lifesign.client.candidate_urls import CandidateUrl, place_under, root_health_url, server_health_url
from lifesign.domain.credentials.request_scope import Purpose
from lifesign.domain.observation.assertion import GATED_STATUSES
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import (
    MAX_REASON_CHARS,
    REFUSED_LOGIN,
    InconclusiveReason,
    LayerResult,
    Observation,
    ResultClass,
    deciding,
    reason_of_inconclusive,
)
from lifesign.domain.observation.server_answer import READ_RESULTS, is_login_of_server, may_be_server
from lifesign.domain.probing.cadence import Cadence, after_probe, wants_card
from lifesign.domain.targets.target import StatedKind, TargetKind, is_on_origin_of, is_target_id
from lifesign.prober.definition.layer_settings import LayerSettings
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.definition.target_settings import paths_of
from lifesign.prober.network.exclusion_list import OptOuts
from lifesign.prober.network.host_limiter import AddressBusy
from lifesign.prober.probe.assertions import check_assertions, needs_body
from lifesign.prober.probe.discovery import discover
from lifesign.prober.probe.disputed_kind import decisive_report, kinds_in_order, may_be_of_other_kind
from lifesign.prober.probe.interface_check import probe_interface, without_card
from lifesign.prober.probe.login import read_login
from lifesign.prober.probe.mcp_server import ServerLayers, nothing_asked, probe_server
from lifesign.prober.probe.message import send_message
from lifesign.prober.probe.missing_credential import without_refused
from lifesign.prober.probe.readiness import read_health
from lifesign.prober.probe.robots_of_other_origins import OtherOrigins
from lifesign.prober.probe.robots_of_target import check_robots_rules
from lifesign.prober.probe.session import EvidenceSink, Fetches, ProbeSession, not_measured
from lifesign.prober.reachability.target_contact import ContactReader, NetworkClasses
from lifesign.prober.registry_exchange.ledger import ProbeReport, TargetEntry
from lifesign.prober.secrets.credential_store import CredentialStore

_WITH_DOCUMENT: Final = frozenset({ResultClass.OK, ResultClass.STALE_DOCUMENT})
"""Results of the health document with which a document comes."""

_OF_REQUESTS: Final = frozenset({
    "interface_url", "interface_binding", "interface_tenant", "protocol_version", "health_url",
})  # fmt: skip
_OF_TARGET: Final = _OF_REQUESTS | {"card_redirect", "card_etag", "link_registry", "link_agent_id"}
"""Remembered facts that are texts of the target. The prober itself makes the others, such as digests."""

_LOGIN_OF_SERVER: Final = "its URL asks for a login: if this is an MCP server, set kind: mcp (--kind mcp)"

_log = logging.getLogger("lifesign")


class Prober:
    """Probes targets. Many probes may run at the same time."""

    def __init__(
        self,
        fetcher: Fetches,
        definition: ProbeDefinition,
        evidence: EvidenceSink | None = None,
        opt_outs: OptOuts | None = None,
        look_up_again: Callable[[str, float | None], Awaitable[None]] | None = None,
        *,
        credentials: CredentialStore | None = None,
    ) -> None:
        """Does no I/O.

        `opt_outs`: targets that the ledger may not know to be excluded; `fetcher` has them too.

        `look_up_again`: that of `Resolver`; None: no name is cached.
        """
        self._fetcher = fetcher
        self._definition = definition
        self._settings_by_url = definition.settings_by_url
        self._checks_by_url = {url: target.checks for url, target in self._settings_by_url.items()}
        self._kinds = {url: target.kind for url, target in self._settings_by_url.items()}
        self._named = frozenset(definition.target_urls)
        self._cadence = definition.cadence.policy()
        self._evidence = evidence
        self._opt_outs = opt_outs or None
        self._look_up_again = look_up_again
        self._credentials = CredentialStore() if credentials is None else credentials
        self._others = OtherOrigins(self._cadence) if definition.opt_out.robots_txt else None
        self._contacts = ContactReader(NetworkClasses(definition.networks_allowed), definition.canaries)
        self._with_uncalled_tool: set[str] = set()
        """URLs of the targets whose tool may not be called, as the log has it."""

    async def probe(self, entry: TargetEntry, at_s: float) -> ProbeReport:
        """Probe a target; return the observation, and what the next probe needs to know.

        `at_s` is the time now, in seconds since the epoch. Raises only AddressBusy, before anything was sent,
        if its address already has its maximum of probes.
        """
        if entry.kind is not StatedKind.DISPUTED or self._kinds.get(entry.url) is not None:
            return (await self._probe_once(entry, at_s))[1]
        first_kind, second_kind = kinds_in_order(entry.memory)
        visit, first = await self._probe_once(replace(entry, kind=first_kind), at_s)
        if not may_be_of_other_kind(visit, first.observation):
            return first
        _, second = await self._probe_once(replace(entry, kind=second_kind), at_s, visit.deadline_s)
        return decisive_report(entry.memory, first, second, second_kind)

    async def _probe_once(
        self, entry: TargetEntry, at_s: float, deadline_s: float | None = None
    ) -> tuple[ProbeSession, ProbeReport]:
        """Probe a target as one kind; `deadline_s` is the end of the probe by the event loop's clock."""
        if entry.is_repeat and self._look_up_again is not None:
            # A failure that is remembered, or an address that is no longer the target's, would repeat itself.
            urls = (entry.url, entry.memory.interface_url, entry.memory.health_url)
            hosts = dict.fromkeys(URL(url).raw_host for url in urls if url is not None)
            again = [self._look_up_again(host, entry.name_failed_at_s) for host in hosts if host is not None]
            await asyncio.gather(*again)
        visit = ProbeSession(
            self._fetcher,
            self._definition,
            self._evidence,
            entry,
            at_s,
            others=self._others,
            credentials=self._credentials,
            deadline_s=deadline_s,
            # A registered agent may have the URL of a target, and its own key reads its results.
            is_named=entry.url in self._named and is_target_id(entry.subject_id),
        )
        visit.checks = self._checks_by_url.get(entry.url, ())
        try:
            observation = await self._observe(visit)
        except AddressBusy:
            raise
        except Exception as defect:  # noqa: BLE001 - a defect in one probe must not end the others
            _log.exception("the probe of %s failed because of a defect in lifesign", entry.subject_id)
            visit.learned.clear()
            visit.interface = None
            visit.checks = ()
            observation = self._observation(visit, discovery=_internal(defect))
        if self._contacts.is_unproved_answer(visit, observation):
            why = "not counted: without TLS, at an address of another network class than the last answer"
            observation = observation.discounted(InconclusiveReason.NO_WITNESS, why, with_answers=True)
            # The card can show that the agent has moved.
            visit.learned["card_read_at_s"] = None
        if self._credentials:
            _forget_removed(visit)
        report = ProbeReport(
            subject_id=entry.subject_id,
            observation=observation,
            memory=self._memory(visit, observation),
            requests=visit.requests,
            contact=self._contacts.read(visit, observation),
            interface=visit.interface,
        )
        return visit, report

    def _memory(self, visit: ProbeSession, observation: Observation) -> ProbeMemory:
        entry, retry_after_s = visit.entry, visit.retry_after_s
        if (address := self._contacts.interface_address(visit, observation.transport)) is not None:
            visit.learned["interface_address"] = address
        return after_probe(
            entry.memory,
            observation,
            self._cadence_of(entry),
            visit.at_s,
            retry_after_s,
            learned=visit.learned,
        )

    def _cadence_of(self, entry: TargetEntry) -> Cadence:
        """Return the target's cadence: the usual one, unless the agent has thresholds of its own."""
        thresholds_s = entry.thresholds_s
        return self._cadence if thresholds_s is None else self._cadence.with_thresholds(*thresholds_s)

    def _asked_of(self, visit: ProbeSession) -> LayerSettings:
        """Return the layers to probe of a target: its own settings, else those of the definition."""
        settings = self._settings_by_url.get(visit.entry.url)
        return (None if settings is None else settings.ask) or self._definition.ask

    async def _observe(self, visit: ProbeSession) -> Observation:
        asked = self._asked_of(visit)
        is_server = self._is_server(visit)
        if is_server:
            visit.kind = TargetKind.MCP
        if (away := await self._refused_by_rules(visit)) is not None:
            card, document = (away, None) if asked.card else (None, away)
            return self._observation(visit, discovery=card, readiness=document)
        if is_server:
            observation = await self._observe_server(visit, asked)
        else:
            observation = await self._observe_agent(visit, asked)
        login = await read_login(visit, observation, self._cadence.card_every_s)
        return observation if login is None else observation.model_copy(update={"login": login})

    async def _observe_agent(self, visit: ProbeSession, asked: LayerSettings) -> Observation:
        memory = visit.entry.memory
        # A message is no reason to leave the card out: before one is sent, we make sure whom it reaches.
        places = (
            memory.interface_url if asked.transport else None,
            memory.health_url if asked.health else None,
        )
        asks_else = [place for place in places if place is not None]
        visit.asks_card = asked.card and (
            any(check.of == "card" for check in visit.checks)
            or wants_card(memory, self._cadence, visit.at_s, asks_else=asks_else)
        )
        discovery = transport = readiness = message = None
        if visit.asks_card:
            discovery = await discover(visit)
            found = await self._ask_as_server(visit, discovery, asked)
            if found is not None and _is_server(visit, found):
                return await self._with_health(visit, asked, found)
            discovery = _with_hint(visit, discovery, found)
            if memory.card_read_at_s is None and not visit.may_ask(visit.given.url):
                # The most frequent case in a directory: no answer, and only the URL is known.
                return self._observation(visit, discovery=discovery)
        if asked.transport and _is_declared(discovery):
            transport = await probe_interface(visit)
        if asked.health:
            readiness = await read_health(visit)
        may_have_moved = _is_lost(transport) or not _proves_alive(visit, transport, readiness)
        if asked.card and not visit.asks_card and may_have_moved:
            # Before an agent or its interface is called dead, its card may show that it has moved.
            interface = memory.interface_url
            visit.asks_card = True
            discovery = await discover(visit)
            if visit.recall("interface_url") != interface and asked.transport and _is_declared(discovery):
                transport = await probe_interface(visit)
            elif transport is not None and visit.has_seen_page and not _is_declared(discovery):
                transport = without_card(visit, transport)
        # The task of a message may be polled until no time is left.
        paths = await _ask_paths(visit, paths_of(self._settings_by_url.get(visit.entry.url), asked))
        if asked.message is not None and _is_declared(discovery) and not visit.entry.is_repeat:
            message = await send_message(visit, asked.message.text)
            await _get_after_failure(visit, message)
            discovery = await _read_after(message, visit, asked, discovery)
        return self._observation(
            visit,
            discovery=discovery,
            transport=transport,
            readiness=readiness,
            message=message,
            paths=paths,
        )

    def _is_server(self, visit: ProbeSession) -> bool:
        """Return whether the definition, a directory or a probe marks the target as an MCP server.

        A detection counts only for targets that the definition names: a POST to a crawled URL might do
        something, and another prober may have written the memory.
        """
        kind = self._kind_of(visit)
        is_known = visit.entry.memory.mcp_generation is not None and visit.entry.url in self._named
        return kind is TargetKind.MCP or (kind is None and is_known)

    def _kind_of(self, visit: ProbeSession) -> TargetKind | None:
        """Return the kind that the definition states, else that of the directories; None if unknown.

        No directory can prevent that a target that the definition names is checked for MCP.
        """
        url, listed = visit.entry.url, visit.entry.kind
        if (defined := self._kinds.get(url)) is not None:
            return defined
        if listed is None or (listed is StatedKind.A2A and url in self._named):
            return None
        return TargetKind(listed)

    async def _ask_as_server(
        self, visit: ProbeSession, discovery: LayerResult | None, asked: LayerSettings
    ) -> ServerLayers | None:
        """Ask a target that the definition names, and that has no card, whether it is an MCP server.

        None if it is not asked.
        """
        is_unknown = self._kind_of(visit) is None and visit.entry.url in self._named
        if discovery is None or not (is_unknown and may_be_server(discovery.result, discovery.status_code)):
            return None
        return await probe_server(visit, asked)

    async def _observe_server(self, visit: ProbeSession, asked: LayerSettings) -> Observation:
        """Probe an MCP server."""
        found = await probe_server(visit, asked)
        if found is None:
            return self._observation(visit, discovery=nothing_asked(visit))
        if found.transport is None and self._kind_of(visit) is None and _was_read(visit, found.discovery):
            # Only a probe has recognised the server, and it may have become an agent with a card.
            visit.learned |= {"mcp_generation": None, "mcp_generation_at_s": None}
        await _get_after_failure(visit, found.tools.called)
        return await self._with_health(visit, asked, found)

    async def _with_health(
        self, visit: ProbeSession, asked: LayerSettings, found: ServerLayers
    ) -> Observation:
        visit.kind = TargetKind.MCP
        if found.tools.uncalled is not None:
            self._log_uncalled_tool(visit.entry.url, found.tools.uncalled)
        own, root = server_health_url(visit.given.url), root_health_url(visit.given.url)
        visit.health_places = (CandidateUrl(own),)
        # Without an answer of the server, a document at the origin's root shows nothing about it.
        if root != own and found.transport is not None and not self._shares_origin(visit):
            visit.health_places += (CandidateUrl(root, is_guess=True),)
        return self._observation(
            visit,
            discovery=found.discovery,
            transport=found.transport,
            readiness=await read_health(visit) if asked.health else None,
            message=found.tools.called,
            tools=found.tools.listed,
            paths=await _ask_paths(visit, paths_of(self._settings_by_url.get(visit.entry.url), asked)),
        )

    def _log_uncalled_tool(self, url: str, why: str) -> None:
        """Log once for each target that the tool of the definition may not be called."""
        if url not in self._with_uncalled_tool:
            self._with_uncalled_tool.add(url)
            _log.warning("%s: %s", url, why)

    def _shares_origin(self, visit: ProbeSession) -> bool:
        """Return whether another target of the definition or of the worker has the origin of this one."""
        url = visit.entry.url
        is_shared = any(is_on_origin_of(other, url) for other in self._named if other != url)
        return is_shared or visit.entry.shares_origin()

    async def _refused_by_rules(self, visit: ProbeSession) -> LayerResult | None:
        """Return why a target is not probed; None if it may be."""
        entry = None if self._opt_outs is None else self._opt_outs.entry_for(visit.entry.url)
        if visit.entry.memory.is_opted_out is not (entry is not None):
            visit.learned["is_opted_out"] = entry is not None
        if entry is not None:
            return not_measured(f"opted out: {entry}"[:MAX_REASON_CHARS])
        if not self._definition.opt_out.robots_txt:
            return None
        return await check_robots_rules(visit, self._cadence_of(visit.entry))

    def _observation(
        self,
        visit: ProbeSession,
        *,
        discovery: LayerResult | None,
        transport: LayerResult | None = None,
        readiness: LayerResult | None = None,
        message: LayerResult | None = None,
        tools: LayerResult | None = None,
        paths: Mapping[str, LayerResult] | None = None,
    ) -> Observation:
        subject_id, url = visit.entry.subject_id, visit.entry.url
        is_target = is_target_id(subject_id)
        document = visit.document
        has_document = readiness is not None and readiness.result in _WITH_DOCUMENT
        given: dict[str, LayerResult | None] = {
            "discovery": discovery, "transport": transport, "readiness": readiness, "message": message,
        }  # fmt: skip
        given, missing = without_refused(visit, given)
        answers = without_refused(visit, paths)[0] if paths else {}
        discovery, transport, readiness, message = given.values()
        layer = deciding(given)
        visit.deciding = layer
        network_class, address = self._contacts.place(visit)
        observation = Observation(
            agent_id=None if is_target else subject_id,
            target_url=url if is_target else None,
            observed_at=visit.now,
            kind=visit.kind,
            discovery=discovery,
            transport=transport,
            readiness=readiness,
            message=message,
            tools=tools,
            document=document if has_document else None,
            reported_agent_id=visit.reported_agent_id,
            card_etag=visit.card_etag,
            certificate_expires_at=visit.certificate_expires_at,
            paths={path: answer for path, answer in answers.items() if answer is not None} or None,
            assertions=check_assertions(
                visit,
                visit.checks,
                {
                    "card": discovery,
                    "transport": transport,
                    "health": readiness,
                    # A tool call takes the place of a message.
                    "message": message,
                    "tool": message,
                    **answers,
                },
            )
            if visit.checks
            else None,
            inconclusive_reason=_inconclusive(visit, layer, has_missing=missing is not None),
            network_class=network_class,
            address=address,
        )
        if missing is not None:
            # With the credential, the agent might have answered there: no other failure counts.
            observation = observation.discounted(InconclusiveReason.NO_CREDENTIAL, missing)
        return observation


def _forget_removed(visit: ProbeSession) -> None:
    """Forget the facts from which a secret was removed: they are not those that the target stated."""
    if not visit.has_altered:
        return
    lost = {name for name in _OF_TARGET if visit.has_removed(visit.learned.get(name) or "")}
    visit.learned |= dict.fromkeys(lost)
    if lost & _OF_REQUESTS:
        # The card is read again in the next probe.
        visit.learned |= dict.fromkeys(("card_read_at_s", "card_digest", "card_etag"))


async def _ask_paths(visit: ProbeSession, paths: Iterable[str]) -> Mapping[str, LayerResult] | None:
    """Request further paths on the target's own origin."""
    answers: dict[str, LayerResult] = {}
    for path in paths:
        url = place_under(visit.given.url, "", path)
        is_checked = any(check.of == path for check in visit.checks)
        is_read = needs_body(visit.checks, path)
        fetched = await visit.ask(
            url,
            max_bytes=visit.definition.limits.max_document_bytes if is_read else 0,
            is_head_enough=not is_read,
            needs_any_body=is_read,
            accept="*/*" if is_checked else "application/json",
            purpose=Purpose.PATH,
        )
        if fetched is not None:
            answers[path] = visit.layer(fetched)
    return answers or None


def _was_read(visit: ProbeSession, layer: LayerResult) -> bool:
    """Return whether a layer's result comes from a complete answer."""
    fetched = visit.fetched_for(layer)
    return fetched is not None and fetched.result in READ_RESULTS


def _is_server(visit: ProbeSession, found: ServerLayers) -> bool:
    """Return whether an MCP server answered, possibly with a request for a login."""
    fetched = visit.fetched_for(found.discovery)
    challenges = () if fetched is None else fetched.challenges
    return found.discovery.result is ResultClass.OK or is_login_of_server(found.discovery.result, challenges)


def _with_hint(
    visit: ProbeSession, discovery: LayerResult | None, found: ServerLayers | None
) -> LayerResult | None:
    """Return the result of the card, with a hint if only a request of MCP shows that there is a login.

    If the prober has no token for the request, a status such as 404 shows no login.
    """
    if discovery is None or found is None or found.discovery.result not in REFUSED_LOGIN:
        return discovery
    if found.discovery.status_code not in GATED_STATUSES:
        return discovery
    return visit.changed(
        discovery, discovery.result, f"{discovery.reason}; {_LOGIN_OF_SERVER}"[:MAX_REASON_CHARS]
    )


def _is_declared(discovery: LayerResult | None) -> bool:
    """Return whether the card's declaration of its interface is still valid, as far as known."""
    return discovery is None or discovery.result is not ResultClass.NOT_AN_AGENT


async def _get_after_failure(visit: ProbeSession, message: LayerResult | None) -> None:
    """Request the URL of a failed message or tool call by GET.

    Messages and calls are not sent a second time, and only an answer to a later request shows that the host
    could be reached.
    """
    fetched = None if message is None or not message.has_failed else visit.fetched_for(message)
    if fetched is not None and fetched.address is not None:
        await visit.ask(
            fetched.url,
            max_bytes=0,
            is_head_enough=True,
            is_aside=True,
            has_secret=fetched.scrubber.is_quoted_in(str(fetched.url)),
            purpose=Purpose.INTERFACE,
        )


async def _read_after(
    message: LayerResult | None, visit: ProbeSession, asked: LayerSettings, discovery: LayerResult | None
) -> LayerResult | None:
    """Return the result of the card, which is requested now if the message failed.

    The next message goes to the interface that the card names now.
    """
    if message is None or not message.has_failed or visit.asks_card or not asked.card:
        return discovery
    visit.asks_card = True
    return await discover(visit)


def _is_lost(transport: LayerResult | None) -> bool:
    """Return whether the known interface has failed, or redirects where the prober does not follow."""
    return transport is not None and (
        transport.has_failed or transport.result is ResultClass.REDIRECT_REFUSED
    )


def _proves_alive(visit: ProbeSession, transport: LayerResult | None, readiness: LayerResult | None) -> bool:
    """Return whether the answer proves an agent; a page for people may come from any server."""
    has_answered = transport is not None and transport.has_answered and not visit.has_seen_page
    return has_answered or (readiness is not None and readiness.result is ResultClass.OK)


def _internal(defect: Exception) -> LayerResult:
    # The text of a defect may quote the peer or local files.
    return LayerResult(result=ResultClass.INTERNAL, reason=f"a defect of the prober: {type(defect).__name__}")


def _inconclusive(
    visit: ProbeSession, layer: LayerResult | None, *, has_missing: bool
) -> InconclusiveReason | None:
    """Return why a probe measured nothing, by the layer that decides; None if it measured anything."""
    if layer is None:
        return InconclusiveReason.NOT_PROBED
    reason = reason_of_inconclusive(layer.result)
    if reason is None:
        return None
    if has_missing:
        return InconclusiveReason.NO_CREDENTIAL
    fetched = visit.fetched_for(layer)
    if fetched is not None and fetched.is_network_fault:
        return InconclusiveReason.NO_WITNESS
    is_kept_out = visit.recall("is_disallowed_by_robots") or visit.recall("is_opted_out")
    if is_kept_out or (fetched is not None and fetched.is_opted_out):
        return InconclusiveReason.NOT_ALLOWED
    return reason
