"""Facts about the connection of one probe: network class, address and answer."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from yarl import URL

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.net.allowed_addresses import Address, Network, vet_address
from lifesign.domain.net.network_class import (
    PUBLIC_CLASSES,
    THIS_MACHINE,
    UNKNOWN_CLASS,
    address_key,
    address_of_key,
    has_name,
    is_loopback,
    network_class_of,
)
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.network.source_address import is_own_address
from lifesign.prober.registry_exchange.ledger import Answered, ProbeConnection, TargetEntry

MAX_KNOWN_ADDRESSES: Final = 100_000
"""Maximum number of addresses whose class is cached."""
_INTERACTIONS: Final = ("transport", "message")
"""Layers that count against an agent also while another layer shows that it lives."""


class NetworkClasses:
    """Determines the network class of addresses, given `networks.allow`.

    The own addresses of this machine belong to it: an agent that runs beside the prober answers also while
    the network is cut, and must be no witness for others.
    """

    def __init__(
        self, allowed: Sequence[Network], is_own: Callable[[Address], bool] = is_own_address
    ) -> None:
        self._allowed = tuple(allowed)
        self._is_own = is_own
        self._known: dict[Address, tuple[str, str]] = {}

    def of(self, address: Address) -> str:
        """Return the network class of an address."""
        return self._read(address)[0]

    def key_of(self, address: Address) -> str:
        """Return what an address counts as: itself for IPv4, its /64 network for IPv6."""
        return self._read(address)[1]

    def of_route(self, address: Address) -> str:
        """Return the network class of an address as if it were no address of this machine's interfaces.

        It may be a virtual one, such as that of a Kubernetes service: packets to it leave the machine.
        """
        return network_class_of(address, self._allowed)

    def of_earlier(self, address: Address) -> str:
        """Return the class of an address that was requested earlier, under an older `networks.allow`."""
        is_refused = vet_address(address, self._allowed) is not None
        return UNKNOWN_CLASS if is_refused else self.of(address)

    @property
    def names(self) -> tuple[str, ...]:
        """Network classes in which a failure counts only if a witness answers."""
        return (*PUBLIC_CLASSES, *dict.fromkeys(map(str, self._allowed)))

    def _read(self, address: Address) -> tuple[str, str]:
        known = self._known.get(address)
        if known is None:
            if self._is_own(address):
                # Not cached: an address that a cut machine has lost is one of the network again.
                return THIS_MACHINE, address_key(address)
            if len(self._known) >= MAX_KNOWN_ADDRESSES:
                self._known.clear()
            known = network_class_of(address, self._allowed), address_key(address)
            self._known[address] = known
        return known


@fast_dataclass()
class Exchange:
    """One request of a probe, with its result."""

    fetched: Fetched
    sent_at_s: float
    """When it was sent, on the event loop's clock."""
    has_secret: bool = False
    """Whether its URL has a secret: it is not requested again as a witness."""


class Traces(Protocol):
    """What the network part of a probe's result is read from: a `ProbeSession`."""

    entry: TargetEntry
    exchanges: list[Exchange]
    deciding: LayerResult | None

    def recall(self, name: str) -> Any:
        """Return a value of the target's memory, or what this probe has learned in its place."""
        ...

    def fetched_for(self, layer: LayerResult) -> Fetched | None:
        """Return the request from which a layer's result comes; None if there is none."""
        ...

    def exchanges_after(self, layer: LayerResult) -> Sequence[Exchange]:
        """Return the requests that were sent after the one from which a layer's result comes."""
        ...


class _LastAnswer(NamedTuple):
    """Where a target, or the interface of its card, answered last."""

    network_class: str | None
    """None if it never answered, or if the class cannot be trusted."""
    address: str | None
    """As in a target's memory; None if it never answered."""


class ContactReader:
    """Determines over which network class a probe reached its target."""

    def __init__(self, classes: NetworkClasses, with_canaries: Collection[str] = ()) -> None:
        """`with_canaries`: the network classes that have canaries."""
        self._classes = classes
        self._with_canaries = frozenset(with_canaries)
        self._present_classes = frozenset((None, THIS_MACHINE, *classes.names))

    def place(self, traces: Traces) -> tuple[str | None, str | None]:
        """Return the network class and the address that decided a probe's result."""
        layer = traces.deciding
        fetched = None if layer is None else traces.fetched_for(layer)
        if layer is not None and layer.has_failed and fetched is not None and fetched.is_foreign:
            # The address of the other host says nothing about the route to the target.
            fetched = None
        has_failed = layer is not None and layer.has_failed
        return self._place_of(traces, fetched, self._last_answer(traces.entry), has_failed=has_failed)

    def interface_address(self, traces: Traces, transport: LayerResult | None) -> str | None:
        """Return the address to remember for an interface that answered as expected; None if it did not."""
        answer = self._interface_answer(traces, transport)
        return None if answer is None else str(answer)

    def _interface_answer(self, traces: Traces, transport: LayerResult | None) -> Address | None:
        """Return where the interface answered this probe as expected; None if it did not."""
        fetched = None if transport is None else traces.fetched_for(transport)
        if transport is None or transport.result is not ResultClass.OK or fetched is None:
            return None
        return None if fetched.is_foreign else fetched.address

    def is_unproved_answer(self, traces: Traces, observation: Observation) -> bool:
        """Return whether a target seems alive only by answers that another host may have given.

        They come without TLS, from an interface whose name now leads into another network class. A router
        without an uplink may demand a login from every request. Card and document are proof enough.
        """
        if observation.identifies_agent or observation.has_renewed_document:
            return False
        if not observation.is_liveness_signal:
            return False
        layers = [getattr(observation, name) for name in _INTERACTIONS]
        answered = [traces.fetched_for(layer) for layer in layers if layer is not None and layer.has_answered]
        return all(
            fetched is not None and fetched.url.scheme == "http" and self._has_left_its_class(traces, fetched)
            for fetched in answered
        )

    def _has_left_its_class(self, traces: Traces, fetched: Fetched) -> bool:
        known = self._last_interface_answer(traces)
        if known.address is None and fetched.url.host == URL(traces.entry.url).host:
            known = self._last_answer(traces.entry)
        return self._is_in_other_class(fetched, known)

    def read(self, traces: Traces, observation: Observation) -> ProbeConnection:
        """Return over which network a probe reached its target, or failed to."""
        answered = self._last_witness_answer(traces.exchanges)
        layer = traces.deciding
        fetched = None if layer is None else traces.fetched_for(layer)
        known = self._last_answer(traces.entry)
        has_answered_itself = (
            fetched is not None
            and self._has_answered_itself(fetched)
            # At its other address, the agent may work.
            and self._missed_address(fetched, known) is None
            and not self._is_in_other_class(fetched, known)
        )
        if observation.is_liveness_signal:
            return self._of_living(traces, observation, answered) or ProbeConnection(
                network_class=observation.network_class,
                has_answered_itself=has_answered_itself,
                answered=answered,
            )
        return ProbeConnection(
            network_class=observation.network_class,
            has_answered_itself=has_answered_itself,
            is_name_failure=layer is not None and self._is_name_failure(layer, fetched, known),
            is_date_failure=fetched is not None and fetched.is_date_fault,
            is_tls_failure=fetched is not None and _is_tls_failure(fetched),
            answered=answered,
        )

    def _of_living(
        self, traces: Traces, observation: Observation, answered: Answered | None
    ) -> ProbeConnection | None:
        """Return the contact of a living target with an unreached interface; None if there is none.

        Its failures would contradict what the agent says of itself, though the way there may be cut. In a
        class with canaries the same holds for an interface at another address: only canaries are witnesses.
        It also holds for an interface whose name did not resolve: the other answers may come from open
        connections, or from names that are still cached. The name may also lead into another class than at
        the last answer, or to another address, unless card or document come from there. And it holds for one
        whose TLS fails: the other answers may come without TLS, and do not confirm the clock.
        """
        failed = _failed_interactions(traces, observation)
        if not failed:
            return None
        known = self._last_interface_answer(traces)
        if (now := self._interface_answer(traces, observation.transport)) is not None:
            known = _LastAnswer(self._classes.of(now), self._classes.key_of(now))
        unreached: dict[str | None, list[str]] = {}
        is_name_failure = is_date_failure = is_tls_failure = False
        own = [fetched for _, fetched in failed.values()]
        for name, (layer, fetched) in failed.items():
            network_class, address = self._place_of(traces, fetched, known, has_failed=True)
            if (
                fetched.result is ResultClass.DNS_FAILURE
                or self._is_in_other_class(fetched, known)
                or (
                    self._is_elsewhere(fetched, known) and not self._has_card_of(traces, observation, fetched)
                )
            ):
                is_name_failure = True
            elif fetched.is_date_fault:
                is_date_failure = True
            elif _is_tls_failure(fetched):
                is_tls_failure = True
            elif address is None or self._is_reached(
                network_class, address, fetched, traces.exchanges_after(layer), own
            ):
                continue
            unreached.setdefault(network_class, []).append(name)
        for network_class, names in unreached.items():
            return ProbeConnection(
                network_class=network_class,
                is_name_failure=is_name_failure,
                is_date_failure=is_date_failure,
                is_tls_failure=is_tls_failure,
                unreached_layers=tuple(names),
                answered=answered,
            )
        return None

    def _has_card_of(self, traces: Traces, observation: Observation, fetched: Fetched) -> bool:
        """Return whether the target's card or document comes from the address of this request."""
        for layer in (observation.discovery, observation.readiness):
            read = None if layer is None or layer.result is not ResultClass.OK else traces.fetched_for(layer)
            if read is not None and read.address is not None and read.address == fetched.address:
                return True
        return False

    def _is_name_failure(self, layer: LayerResult, fetched: Fetched | None, known: _LastAnswer) -> bool:
        """Return whether the name did not resolve, or leads to another address than the one that answered.

        A name server may answer for all names with the address of a page of its own, or of a host that
        redirects to such a page.
        """
        is_unresolved = layer.result is ResultClass.DNS_FAILURE
        return is_unresolved or (fetched is not None and self._is_elsewhere(fetched, known))

    def _is_elsewhere(self, fetched: Fetched, known: _LastAnswer) -> bool:
        """Return whether the address that answered last is not among those that were requested now."""
        if known.address is None or fetched.address is None:
            return False
        if not has_name(str(fetched.redirected_from or fetched.url)):
            # No name server led here.
            return False
        found = (fetched.redirected_by or fetched.address, fetched.address, *fetched.tried)
        return known.address not in map(self._classes.key_of, found)

    def _is_in_other_class(self, fetched: Fetched, known: _LastAnswer) -> bool:
        """Return whether a name now leads into another network class than at the last answer.

        A router without an uplink may answer for all names with its own address. Without a VPN, names may
        resolve as they do for strangers.
        """
        if known.network_class is None or fetched.address is None:
            return False
        is_other = self._classes.of(fetched.address) != known.network_class
        return is_other and self._is_elsewhere(fetched, known)

    def _place_of(
        self, traces: Traces, fetched: Fetched | None, known: _LastAnswer, *, has_failed: bool
    ) -> tuple[str | None, str | None]:
        """Return the network class and address that decide about a request."""
        if fetched is None or fetched.address is None:
            return known.network_class, None
        missed = self._missed_address(fetched, known) if has_failed else None
        address = fetched.address if missed is None else missed
        network_class = self._classes.of(address)
        if has_failed and (route := self._classes.of_route(address)) in self._with_canaries:
            network_class = route
        # A name server that leads to this machine, or into another class, may do so for all names.
        is_misled = network_class == THIS_MACHINE and has_name(traces.entry.url)
        if has_failed:
            is_misled = is_misled or self._is_in_other_class(fetched, known)
        if is_misled and known.network_class is not None:
            network_class = known.network_class
        return network_class, self._classes.key_of(address)

    def _missed_address(self, fetched: Fetched, known: _LastAnswer) -> Address | None:
        """Return an address of the class of the last answer that was tried in vain; None if there is none.

        A failure at another address says little: that one may never have worked. But an answer of the address
        that answered last is the target's own.
        """
        if not fetched.tried:
            return None
        is_direct = fetched.redirected_from is None and fetched.status is not None
        if (
            is_direct
            and fetched.address is not None
            and self._classes.key_of(fetched.address) == known.address
        ):
            return None
        return next((each for each in fetched.tried if self._classes.of(each) == known.network_class), None)

    def _last_answer(self, entry: TargetEntry) -> _LastAnswer:
        """Return where a target answered last."""
        network_class, address = entry.memory.network_class, entry.memory.address
        if network_class not in self._present_classes:
            # `networks.allow` has changed since.
            known = None if address is None else address_of_key(address)
            network_class = UNKNOWN_CLASS if known is None else self._classes.of_earlier(known)
        return _LastAnswer(_trusted(network_class, entry.url), address)

    def _last_interface_answer(self, traces: Traces) -> _LastAnswer:
        """Return where a target's interface answered last; its host may be another than that of the card."""
        # None if this probe's card names another interface than the one before.
        known = traces.recall("interface_address")
        address = None if known is None else address_of_key(known)
        if address is None:
            return _LastAnswer(self._last_answer(traces.entry).network_class, None)
        network_class = self._classes.of_earlier(address)
        url = traces.recall("interface_url") or ""
        return _LastAnswer(_trusted(network_class, url), self._classes.key_of(address))

    def _last_witness_answer(self, exchanges: Iterable[Exchange]) -> Answered | None:
        """Return the last answer that can be a witness: of the host itself, over a new connection."""
        found = None
        for exchange in exchanges:
            phases = exchange.fetched.phases
            is_new = phases is not None and phases.connect_ms is not None
            if is_new and not exchange.has_secret and self._has_answered_itself(exchange.fetched):
                found = exchange
        if found is None or found.fetched.address is None:
            return None
        return Answered(
            network_class=self._classes.of(found.fetched.address),
            url=str(found.fetched.url),
            sent_at_s=found.sent_at_s,
        )

    def _is_reached(
        self,
        network_class: str | None,
        address: str,
        fetched: Fetched,
        later: Iterable[Exchange],
        failed: Collection[Fetched],
    ) -> bool:
        """Return whether the way to an address works: it is that of this machine, or has answered since.

        `later` are the requests after the failed one, `fetched`: an answer from before shows nothing about
        the way at that time. If `address` was tried in vain, an answer of the one that was used then is
        enough in the same class. In a class without canaries, an answer of any address of it is.
        """
        if network_class == THIS_MACHINE:
            return True
        answered = [
            (each, each.address)
            for each in (exchange.fetched for exchange in later)
            if each.status is not None and each.address is not None
        ]
        if network_class not in self._with_canaries:
            return any(self._classes.of(known) == network_class for _, known in answered)
        addresses = {address}
        if fetched.address is not None and self._classes.of(fetched.address) == network_class:
            addresses.add(self._classes.key_of(fetched.address))
        return any(
            self._classes.key_of(known) in addresses and all(each is not one for one in failed)
            for each, known in answered
        )

    def _has_answered_itself(self, fetched: Fetched) -> bool:
        """Return whether a host gave an HTTP answer of any status that cannot come from another host.

        That is one over TLS, since certificates are verified, or one from this machine or an allowed network.
        """
        if fetched.status is None or fetched.address is None or fetched.is_foreign:
            return False
        return fetched.url.scheme == "https" or self._classes.of(fetched.address) not in PUBLIC_CLASSES


def _failed_interactions(
    traces: Traces, observation: Observation
) -> Mapping[str, tuple[LayerResult, Fetched]]:
    """Return the failed interactions by name, each with its request."""
    failed = {}
    for name in _INTERACTIONS:
        layer = getattr(observation, name)
        if layer is not None and layer.has_failed and (fetched := traces.fetched_for(layer)) is not None:
            failed[name] = layer, fetched
    return failed


def _is_tls_failure(fetched: Fetched) -> bool:
    """Return whether TLS failed, and not only by a date: perhaps for all hosts that this machine reaches."""
    return fetched.result is ResultClass.TLS_FAILURE and not fetched.is_date_fault


def _trusted(network_class: str | None, url: str) -> str | None:
    """Return the network class in a target's memory; None if there is none, or none to trust.

    Another prober may have written it. This machine needs no witness, so only the URL itself may say so.
    """
    return None if network_class == THIS_MACHINE and not is_loopback(url) else network_class
