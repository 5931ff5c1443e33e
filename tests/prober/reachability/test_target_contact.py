"""Facts of one probe about the path to its target."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any

import pytest
from yarl import URL

from lifesign.domain.net.allowed_addresses import read_networks
from lifesign.domain.net.network_class import PUBLIC_IPV4, PUBLIC_IPV6, THIS_MACHINE, UNKNOWN_CLASS
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import LayerResult, Observation, Phases, ResultClass
from lifesign.domain.targets.target import target_id
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.reachability import target_contact as contact_file
from lifesign.prober.reachability.target_contact import ContactReader, Exchange, NetworkClasses
from lifesign.prober.registry_exchange.ledger import ProbeConnection, TargetEntry

FOUR, OTHER_FOUR, SIX = ip_address("93.184.216.34"), ip_address("93.184.216.35"), ip_address("2606:2800::1")
TEN = ip_address("10.1.2.3")
CLASSES = NetworkClasses(read_networks(["10.1.0.0/16", "127.0.0.0/8"]))
URL_HERE = "https://a.example/"
NEW = Phases(connect_ms=1.0)
REUSED = Phases(first_byte_ms=1.0)


def fetched(url: str = URL_HERE, result: str = "ok", **members: Any) -> Fetched:
    return Fetched(url=URL(url), result=ResultClass(result), **members)


@dataclass
class Traces:
    """Requests of a probe by the layers that are read from them."""

    requests: dict[str, Fetched]
    known_class: str | None = None
    known_address: str | None = None
    entry: TargetEntry = field(init=False)
    exchanges: list[Exchange] = field(init=False)
    deciding: LayerResult | None = None
    learned: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        memory = ProbeMemory(
            network_class=self.known_class,
            address=self.known_address,
            interface_url="https://a.example/rpc",
        )
        self.entry = TargetEntry(subject_id=target_id(URL_HERE), url=URL_HERE, memory=memory)
        self.exchanges = [
            Exchange(each, 100.0 + number) for number, each in enumerate(self.requests.values())
        ]
        self.layers = {name: LayerResult(result=each.result) for name, each in self.requests.items()}

    def recall(self, name: str) -> Any:
        return self.learned.get(name, getattr(self.entry.memory, name))

    def fetched_for(self, layer: LayerResult) -> Fetched | None:
        return next((self.requests[name] for name, each in self.layers.items() if each is layer), None)

    def exchanges_after(self, layer: LayerResult) -> Sequence[Exchange]:
        fetched = self.fetched_for(layer)
        found = [number for number, each in enumerate(self.exchanges, 1) if each.fetched is fetched]
        return self.exchanges[found[0] :]

    def read(self, with_canaries: Collection[str] = ()) -> ProbeConnection:
        observation = Observation(target_url=URL_HERE, observed_at=datetime.now(UTC), **self.layers)  # type: ignore[arg-type]  # layers alone
        self.deciding = next(iter(self.layers.values()), None)
        reader = ContactReader(CLASSES, with_canaries)
        network_class, address = reader.place(self)
        update = {"network_class": network_class, "address": address}
        return reader.read(self, observation.model_copy(update=update))


def with_interface_at(address: str | None, requests: Traces) -> Traces:
    memory = requests.entry.memory.model_copy(update={"interface_address": address})
    requests.entry = replace(requests.entry, memory=memory)
    return requests


def contact_of(known_class: str | None = None, **requests: Fetched) -> ProbeConnection:
    return Traces(requests, known_class).read()


def test_network_classes_are_those_of_the_definition() -> None:
    assert CLASSES.names == (PUBLIC_IPV4, PUBLIC_IPV6, "10.1.0.0/16", "127.0.0.0/8")
    assert [CLASSES.of(each) for each in (FOUR, SIX, TEN)] == [PUBLIC_IPV4, PUBLIC_IPV6, "10.1.0.0/16"]
    assert CLASSES.key_of(SIX) == "2606:2800::/64"


def test_own_address_of_the_machine_is_no_part_of_the_network_until_it_is_lost() -> None:
    """An agent beside the prober answers without any network; a cut machine may lose its address."""
    own = {TEN, FOUR}
    classes = NetworkClasses(read_networks(["10.1.0.0/16"]), own.__contains__)
    assert [classes.of(address) for address in (TEN, FOUR)] == [THIS_MACHINE, THIS_MACHINE]
    own.clear()
    assert [classes.of(address) for address in (TEN, FOUR)] == ["10.1.0.0/16", PUBLIC_IPV4]


@pytest.mark.parametrize(
    ("address", "with_canaries", "result", "found"),
    [
        (TEN, ["10.1.0.0/16"], "timeout", "10.1.0.0/16"),
        (FOUR, [PUBLIC_IPV4], "timeout", PUBLIC_IPV4),
        (TEN, [PUBLIC_IPV4], "timeout", THIS_MACHINE),
        (TEN, [], "timeout", THIS_MACHINE),
        (TEN, ["10.1.0.0/16"], "ok", THIS_MACHINE),
        (ip_address("127.0.0.1"), ["127.0.0.0/8"], "timeout", THIS_MACHINE),
    ],
)
def test_failure_at_an_own_address_needs_the_canaries_of_its_network(
    address: Any, with_canaries: list[str], result: str, found: str
) -> None:
    """A virtual address of this machine leads to another one; an answer is still no witness for others."""
    classes = NetworkClasses(read_networks(["10.1.0.0/16", "127.0.0.0/8"]), {TEN, FOUR}.__contains__)
    requests = Traces({"discovery": fetched(result=result, address=address)})
    requests.deciding = requests.layers["discovery"]
    assert ContactReader(classes, with_canaries).place(requests)[0] == found


@pytest.mark.parametrize("with_canaries", [(), ("10.1.0.0/16",), (PUBLIC_IPV4, "10.1.0.0/16")])
@pytest.mark.parametrize(
    ("known_class", "known", "now"), [("10.1.0.0/16", TEN, FOUR), (PUBLIC_IPV4, FOUR, TEN)]
)
def test_failure_of_a_name_that_leads_into_another_class_is_judged_in_the_last_one(
    known_class: str, known: Any, now: Any, with_canaries: tuple[str, ...]
) -> None:
    """A router without an uplink answers for all names; without a VPN they resolve as for strangers."""
    page = fetched(result="http_error", status=404, address=now)
    requests = Traces({"discovery": page}, known_class, str(known))
    contact = requests.read(with_canaries)
    assert contact.network_class == known_class
    assert (contact.is_name_failure, contact.has_answered_itself) == (True, False)


@pytest.mark.parametrize("with_canaries", [(), (PUBLIC_IPV4,)])
@pytest.mark.parametrize("tried", [(), (ip_address("93.184.216.36"),)])
def test_hung_message_counts_if_its_interface_answers_at_a_new_address(
    tried: Any, with_canaries: tuple[str, ...]
) -> None:
    """The addresses of a load balancer change; another one of them may be dead."""
    requests = Traces(
        {
            "transport": fetched(address=OTHER_FOUR, status=405),
            "message": fetched(result="timeout", address=OTHER_FOUR, tried=tried),
            "readiness": fetched(result="not_an_agent", address=OTHER_FOUR, status=404),
        },
        PUBLIC_IPV4,
        str(FOUR),
    )
    assert with_interface_at(str(FOUR), requests).read(with_canaries).unreached_layers == ()


def test_target_without_a_name_is_not_misled() -> None:
    """A redirect led the last answer to another address, or another prober remembered its class."""
    refused = fetched("http://10.1.0.5/", "refused", address=TEN)
    contact = Traces({"discovery": refused}, PUBLIC_IPV4, str(FOUR)).read()
    assert (contact.network_class, contact.is_name_failure) == ("10.1.0.0/16", False)
    own = NetworkClasses(read_networks(["10.1.0.0/16"]), {TEN}.__contains__)
    requests = Traces({"discovery": refused}, "10.1.0.0/16", str(TEN))
    requests.entry = replace(requests.entry, url="http://10.1.0.5/")
    requests.deciding = requests.layers["discovery"]
    assert ContactReader(own).place(requests)[0] == THIS_MACHINE


def test_agent_that_answers_in_another_class_has_moved() -> None:
    card = fetched(address=FOUR, status=200)
    contact = Traces({"discovery": card}, "10.1.0.0/16", str(TEN)).read()
    assert (contact.network_class, contact.unreached_layers) == (PUBLIC_IPV4, ())


@pytest.mark.parametrize(
    ("scheme", "now", "card", "interface_address", "is_unproved"),
    [
        ("http", TEN, "gated", None, True),
        ("http", TEN, "gated", str(FOUR), True),
        ("https", TEN, "gated", str(FOUR), False),
        ("http", OTHER_FOUR, "gated", str(FOUR), False),
        ("http", TEN, "gated", str(TEN), False),
        ("http", TEN, "ok", str(FOUR), False),
    ],
)
@pytest.mark.parametrize("interface", ["ok", "gated"])
def test_answer_without_tls_in_another_class_is_proved_only_by_a_card(
    scheme: str, now: Any, card: str, interface_address: str | None, interface: str, *, is_unproved: bool
) -> None:
    """A router without an uplink demands a login from every request."""
    url = f"{scheme}://a.example/"
    requests = with_interface_at(
        interface_address,
        Traces(
            {
                "discovery": fetched(url, card, status=401, address=now),
                "transport": fetched(url, interface, status=401, address=now),
            },
            PUBLIC_IPV4,
            str(FOUR),
        ),
    )
    observation = Observation(target_url=URL_HERE, observed_at=datetime.now(UTC), **requests.layers)  # type: ignore[arg-type]  # layers alone
    assert ContactReader(CLASSES).is_unproved_answer(requests, observation) is is_unproved


@pytest.mark.parametrize(
    ("known", "network_class", "layers"),
    [
        (None, PUBLIC_IPV4, ()),
        ("nonsense", PUBLIC_IPV4, ()),
        (str(FOUR), PUBLIC_IPV4, ()),
        (str(TEN), "10.1.0.0/16", ("transport",)),
        ("2606:2800::/64", PUBLIC_IPV6, ("transport",)),
        # A prober with a stolen key may have written it.
        ("127.0.0.1", PUBLIC_IPV4, ()),
    ],
)
def test_interface_that_left_its_class_is_unreached_although_the_card_answers_after_it(
    known: str | None, network_class: str, layers: tuple[str, ...]
) -> None:
    requests = Traces(
        {
            "transport": fetched(result="http_error", status=404, address=FOUR),
            "discovery": fetched(address=FOUR, status=200),
        },
        PUBLIC_IPV4,
        str(FOUR),
    )
    contact = with_interface_at(known, requests).read()
    assert (contact.network_class, contact.unreached_layers) == (network_class, layers)
    assert contact.is_name_failure is bool(layers)


@pytest.mark.parametrize("with_canaries", [(), (PUBLIC_IPV4,)])
@pytest.mark.parametrize(
    ("interface_address", "card_address", "is_name_failure"),
    [
        (str(OTHER_FOUR), OTHER_FOUR, True),
        (str(OTHER_FOUR), TEN, True),
        # The agent has moved, and its interface fails.
        (str(OTHER_FOUR), FOUR, False),
        (str(FOUR), OTHER_FOUR, False),
        (None, OTHER_FOUR, False),
    ],
)
def test_interface_whose_name_leads_to_another_address_fails_like_one_that_leads_nowhere(
    interface_address: str | None, card_address: Any, with_canaries: tuple[str, ...], *, is_name_failure: bool
) -> None:
    requests = with_interface_at(
        interface_address,
        Traces(
            {
                "transport": fetched(result="http_error", status=404, address=FOUR),
                "discovery": fetched(address=card_address, status=200),
            },
            PUBLIC_IPV4,
            str(card_address),
        ),
    )
    contact = requests.read(with_canaries)
    assert contact.is_name_failure is is_name_failure
    assert contact.unreached_layers == ("transport",) or not is_name_failure


@pytest.mark.parametrize(
    ("result", "members", "found"),
    [
        ("ok", {"address": TEN}, str(TEN)),
        ("ok", {"address": SIX}, "2606:2800::1"),
        ("ok", {"address": TEN, "redirected_by": FOUR}, None),
        ("ok", {}, None),
        ("http_error", {"address": TEN}, None),
    ],
)
def test_address_of_an_interface_is_that_of_its_last_good_answer(
    result: str, members: dict[str, Any], found: str | None
) -> None:
    requests = Traces({"transport": fetched(result=result, **members)})
    assert ContactReader(CLASSES).interface_address(requests, requests.layers["transport"]) == found
    assert ContactReader(CLASSES).interface_address(requests, None) is None


@pytest.mark.parametrize(
    ("known_class", "known", "allowed", "found"),
    [
        ("10.1.0.0/16", TEN, ["10.0.0.0/8"], "10.0.0.0/8"),
        ("10.1.0.0/16", TEN, [], UNKNOWN_CLASS),
        ("10.1.0.0/16", None, ["10.0.0.0/8"], UNKNOWN_CLASS),
        ("93.184.216.0/24", FOUR, [], PUBLIC_IPV4),
        (PUBLIC_IPV6, SIX, [], PUBLIC_IPV6),
    ],
)
def test_class_that_is_no_longer_allowed_is_unknown_unless_its_address_is_in_another(
    known_class: str, known: Any, allowed: list[str], found: str
) -> None:
    lost = fetched(result="dns_failure", is_reached=False)
    requests = Traces({"discovery": lost}, known_class, None if known is None else str(known))
    requests.deciding = requests.layers["discovery"]
    reader = ContactReader(NetworkClasses(read_networks(allowed)))
    assert reader.place(requests)[0] == found


@pytest.mark.parametrize(
    ("allowed", "found"),
    [(["fd12::/48"], "fd12::/48"), (["fd12::/48", "fd12::1:0/112"], "fd12::1:0/112"), ([], UNKNOWN_CLASS)],
)
def test_class_of_an_interface_is_that_of_its_address(allowed: list[str], found: str) -> None:
    """An entry of `networks.allow` may be narrower than the /64 network of the address."""
    requests = Traces(
        {
            "transport": fetched(result="dns_failure", is_reached=False),
            "discovery": fetched(address=FOUR, status=200),
        },
        PUBLIC_IPV4,
        str(FOUR),
    )
    reader = ContactReader(NetworkClasses(read_networks(allowed)))
    observation = Observation(target_url=URL_HERE, observed_at=datetime.now(UTC), **requests.layers)  # type: ignore[arg-type]  # layers alone
    contact = reader.read(with_interface_at("fd12::1:5", requests), observation)
    assert (contact.network_class, contact.unreached_layers) == (found, ("transport",))


def test_interface_that_the_card_has_just_changed_has_no_last_answer() -> None:
    requests = Traces(
        {
            "transport": fetched(result="http_error", status=404, address=FOUR),
            "discovery": fetched(address=FOUR, status=200),
        },
        PUBLIC_IPV4,
        str(FOUR),
    )
    with_interface_at(str(TEN), requests)
    assert requests.read().network_class == "10.1.0.0/16"
    requests.learned["interface_address"] = None
    assert requests.read().unreached_layers == ()


def test_memory_of_addresses_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contact_file, "MAX_KNOWN_ADDRESSES", 3)
    classes = NetworkClasses(())
    for number in range(10):
        assert classes.of(ip_address(f"93.184.216.{number}")) == PUBLIC_IPV4
        assert len(classes._known) <= 3


@pytest.mark.parametrize(
    ("url", "address", "is_own"),
    [
        ("https://a.example/", FOUR, True),
        ("http://a.example/", FOUR, False),
        ("http://a.example/", SIX, False),
        ("http://a.example/", TEN, True),
        ("http://a.example/", ip_address("127.0.0.1"), True),
    ],
)
def test_host_counts_as_answered_over_tls_or_in_an_allowed_network(
    url: str, address: Any, *, is_own: bool
) -> None:
    failed = fetched(url, "http_error", status=500, address=address, phases=NEW)
    contact = contact_of(discovery=failed)
    assert contact.has_answered_itself is is_own
    assert (contact.answered is not None) is is_own


@pytest.mark.parametrize("result", ["timeout", "refused", "tls_failure", "http_error"])
def test_host_without_an_http_status_has_not_answered(result: str) -> None:
    contact = contact_of(discovery=fetched(result=result, address=FOUR))
    assert (contact.has_answered_itself, contact.answered) == (False, None)
    assert contact.network_class == PUBLIC_IPV4


def test_last_answering_class_counts_for_failed_addresses() -> None:
    failed = fetched(result="timeout", address=FOUR, tried=(FOUR, SIX, OTHER_FOUR))
    assert contact_of(PUBLIC_IPV6, discovery=failed).network_class == PUBLIC_IPV6
    assert contact_of(PUBLIC_IPV4, discovery=failed).network_class == PUBLIC_IPV4
    assert contact_of(None, discovery=failed).network_class == PUBLIC_IPV4
    # The name resolves to another network now.
    assert contact_of("10.1.0.0/16", discovery=failed).network_class == PUBLIC_IPV4


@pytest.mark.parametrize(
    ("known_class", "found", "is_own"),
    [(PUBLIC_IPV4, PUBLIC_IPV4, False), (PUBLIC_IPV6, PUBLIC_IPV6, True), (None, PUBLIC_IPV6, True)],
)
def test_wrong_answer_is_judged_in_the_class_of_the_last_answer_if_its_address_failed(
    known_class: str | None, found: str, *, is_own: bool
) -> None:
    """An agent may work over IPv4 only, while its IPv6 address belongs to another server."""
    wrong = fetched(result="http_error", status=500, address=SIX, tried=(FOUR,))
    contact = Traces({"discovery": wrong}, known_class, known_class and str(FOUR)).read()
    assert (contact.network_class, contact.has_answered_itself) == (found, is_own)
    assert not contact.is_name_failure
    # A good answer has the class of its own address.
    good = fetched(status=200, address=SIX, tried=(FOUR,))
    assert contact_of(known_class, discovery=good).network_class == PUBLIC_IPV6


@pytest.mark.parametrize(
    ("address", "redirected_from", "is_own"),
    [(FOUR, None, True), (OTHER_FOUR, None, False), (FOUR, URL("https://b.example/"), False)],
)
def test_wrong_answer_of_the_last_address_is_its_own_although_another_address_failed(
    address: Any, redirected_from: URL | None, *, is_own: bool
) -> None:
    wrong = fetched(
        result="http_error",
        status=500,
        address=address,
        tried=(ip_address("93.184.216.36"),),
        redirected_from=redirected_from,
    )
    contact = Traces({"discovery": wrong}, PUBLIC_IPV4, str(FOUR)).read()
    assert (contact.network_class, contact.has_answered_itself) == (PUBLIC_IPV4, is_own)


def test_interface_that_answers_wrongly_is_judged_in_the_class_of_the_last_answer() -> None:
    wrong = fetched("https://b.example/", "http_error", status=500, address=SIX, tried=(FOUR,))
    later = fetched(result="not_an_agent", status=404, address=SIX)
    requests = {"discovery": fetched(status=200, address=SIX), "transport": wrong, "readiness": later}
    contact = contact_of(PUBLIC_IPV4, **requests)
    assert (contact.network_class, contact.unreached_layers) == (PUBLIC_IPV4, ("transport",))
    assert contact_of(PUBLIC_IPV6, **requests).unreached_layers == ()
    # The card may answer over IPv6, and the interface not.
    contact = with_interface_at(str(FOUR), Traces(requests, PUBLIC_IPV6)).read()
    assert (contact.network_class, contact.unreached_layers) == (PUBLIC_IPV4, ("transport",))


def test_a_name_that_did_not_resolve_has_the_class_of_its_last_address() -> None:
    contact = contact_of(PUBLIC_IPV6, discovery=fetched(result="dns_failure"))
    assert (contact.network_class, contact.is_name_failure) == (PUBLIC_IPV6, True)


@pytest.mark.parametrize(
    ("known", "address", "tried", "is_name_failure"),
    [
        (None, FOUR, (), False),
        (str(FOUR), FOUR, (), False),
        (str(FOUR), OTHER_FOUR, (FOUR, OTHER_FOUR), False),
        (str(FOUR), OTHER_FOUR, (OTHER_FOUR,), True),
        ("2606:2800::/64", SIX, (), False),
    ],
)
def test_name_that_leads_elsewhere_than_to_the_last_answer_fails_like_one_that_leads_nowhere(
    known: str | None, address: Any, tried: Any, *, is_name_failure: bool
) -> None:
    """A name server may answer for all names with the address of a page of its own."""
    failed = fetched(result="refused", address=address, tried=tried)
    contact = Traces({"discovery": failed}, known_address=known).read()
    assert contact.is_name_failure is is_name_failure


@pytest.mark.parametrize(
    ("known", "is_name_failure"), [(None, False), (TEN, False), (OTHER_FOUR, False), (FOUR, True)]
)
def test_name_that_leads_to_a_redirect_of_another_host_fails_like_one_that_leads_nowhere(
    known: Any, *, is_name_failure: bool
) -> None:
    page = fetched(
        "http://portal.example/", "not_an_agent", status=200, address=OTHER_FOUR, redirected_by=TEN
    )
    contact = Traces({"discovery": page}, known_address=known and str(known)).read()
    assert contact.is_name_failure is is_name_failure


@pytest.mark.parametrize(
    ("known_class", "found"), [(None, THIS_MACHINE), (THIS_MACHINE, THIS_MACHINE), (PUBLIC_IPV4, PUBLIC_IPV4)]
)
def test_name_that_leads_to_this_machine_since_it_failed_keeps_its_class(
    known_class: str | None, found: str
) -> None:
    failed = fetched(result="refused", address=ip_address("127.0.0.1"))
    assert contact_of(known_class, discovery=failed).network_class == found


@pytest.mark.parametrize("is_foreign", [False, True])
@pytest.mark.parametrize("address", [FOUR, TEN])
def test_other_host_after_a_redirect_without_tls_is_no_evidence(address: Any, *, is_foreign: bool) -> None:
    """A captive portal redirects all requests without TLS to a host with a good certificate."""
    page = fetched(
        "https://portal.example/",
        "not_an_agent",
        status=200,
        address=address,
        phases=NEW,
        redirected_by=address if is_foreign else None,
    )
    contact = contact_of(PUBLIC_IPV4, discovery=page)
    assert contact.has_answered_itself is not is_foreign
    assert (contact.answered is None) is is_foreign
    assert contact.network_class == (PUBLIC_IPV4 if is_foreign else CLASSES.of(address))


def test_wrong_date_is_reported() -> None:
    failed = fetched(result="tls_failure", address=FOUR, is_date_fault=True)
    assert contact_of(discovery=failed).is_date_failure


def test_interface_with_a_wrong_date_is_unreached_although_its_host_answered() -> None:
    card = fetched(status=200, address=FOUR, phases=NEW)
    expired = fetched("https://b.example/", "tls_failure", address=FOUR, is_date_fault=True)
    contact = contact_of(discovery=card, transport=expired)
    assert (contact.unreached_layers, contact.is_date_failure) == (("transport",), True)


@pytest.mark.parametrize(("is_date_fault", "is_tls_failure"), [(False, True), (True, False)])
def test_failed_handshake_needs_a_witness_over_tls(*, is_date_fault: bool, is_tls_failure: bool) -> None:
    failed = fetched(result="tls_failure", address=FOUR, is_date_fault=is_date_fault)
    assert contact_of(discovery=failed).is_tls_failure == is_tls_failure
    card = fetched("http://b.example/", status=200, address=FOUR, phases=NEW)
    contact = contact_of(discovery=card, transport=failed)
    assert (contact.unreached_layers, contact.is_tls_failure) == (("transport",), is_tls_failure)
    assert not contact_of(discovery=fetched(result="refused", address=FOUR)).is_tls_failure


def test_last_answer_over_a_new_connection_is_the_witness() -> None:
    first = fetched(status=200, address=FOUR, phases=NEW)
    later = fetched("https://b.example/x", status=200, address=SIX, phases=NEW)
    reused = fetched(status=200, address=FOUR, phases=REUSED)
    contact = contact_of(discovery=first, transport=later, message=reused)
    answered = contact.answered
    assert answered is not None
    assert (answered.url, answered.network_class, answered.sent_at_s) == (
        "https://b.example/x",
        PUBLIC_IPV6,
        101.0,
    )
    assert contact_of(discovery=reused).answered is None


def test_url_with_a_secret_is_no_witness() -> None:
    first = fetched(status=200, address=FOUR, phases=NEW)
    endpoint = fetched("https://b.example/messages?key=secret", status=202, address=SIX, phases=NEW)
    traces = Traces({"discovery": first, "transport": endpoint})
    traces.exchanges[-1] = replace(traces.exchanges[-1], has_secret=True)
    answered = traces.read().answered
    assert answered is not None
    assert answered.url == URL_HERE


def test_interface_in_a_class_without_answers_is_unreached() -> None:
    card = fetched(status=200, address=FOUR, phases=NEW)
    silent = fetched("https://b.example/", "timeout", address=SIX)
    contact = contact_of(discovery=card, transport=silent, message=silent)
    assert (contact.network_class, contact.unreached_layers) == (PUBLIC_IPV6, ("transport", "message"))


def test_interface_whose_name_did_not_resolve_is_unreached() -> None:
    """The card's name may be cached, or its connection open, while the name server is gone."""
    card = fetched(status=200, address=FOUR, phases=REUSED)
    unresolved = fetched("https://b.example/", "dns_failure")
    contact = contact_of(PUBLIC_IPV4, discovery=card, transport=unresolved, message=unresolved)
    assert contact.unreached_layers == ("transport", "message")
    assert (contact.network_class, contact.is_name_failure) == (PUBLIC_IPV4, True)


@pytest.mark.parametrize(
    "interface",
    [
        # The network class of this interface answered the same probe.
        fetched("https://b.example/", "timeout", address=OTHER_FOUR),
        # It is on this machine.
        fetched("http://127.0.0.1/", "refused", address=ip_address("127.0.0.1")),
    ],
)
def test_interface_in_a_class_with_answers_fails_itself(interface: Fetched) -> None:
    card = fetched(status=200, address=FOUR, phases=NEW)
    later = fetched(result="not_an_agent", status=404, address=FOUR)
    assert contact_of(discovery=card, transport=interface, readiness=later).unreached_layers == ()
    # A missing health document does not count either.
    assert contact_of(discovery=card, readiness=fetched(result="timeout", address=SIX)).unreached_layers == ()


@pytest.mark.parametrize(
    ("address", "status", "unreached"),
    [(FOUR, None, ()), (OTHER_FOUR, None, ("transport",)), (OTHER_FOUR, 503, ("transport",))],
)
def test_interface_at_another_address_is_unreached_in_a_class_with_canaries(
    address: Any, status: int | None, unreached: tuple[str, ...]
) -> None:
    """The answer of the card's host is no witness there: the network may be cut to all others."""
    card = fetched(status=200, address=FOUR, phases=NEW)
    interface = fetched("https://b.example/", "http_error", status=status, address=address)
    later = fetched(result="not_an_agent", status=404, address=FOUR)
    requests = {"discovery": card, "transport": interface, "readiness": later}
    contact = Traces(requests).read([PUBLIC_IPV4])
    assert (contact.network_class, contact.unreached_layers) == (PUBLIC_IPV4, unreached)


@pytest.mark.parametrize("canaries", [[], [PUBLIC_IPV4]])
def test_answer_from_before_a_failure_shows_nothing_about_the_way(canaries: list[str]) -> None:
    card, silent = fetched(status=200, address=FOUR, phases=NEW), fetched(result="timeout", address=FOUR)
    before = Traces({"discovery": card, "transport": fetched(status=405, address=FOUR), "message": silent})
    assert before.read(canaries).unreached_layers == ("message",)
    since = Traces({"message": silent, "discovery": card})
    assert since.read(canaries).unreached_layers == ()


@pytest.mark.parametrize(("url", "is_own"), [("https://a.example/", True), ("http://a.example/", False)])
def test_host_of_a_living_target_answered_itself_unless_its_interface_is_unreached(
    url: str, *, is_own: bool
) -> None:
    card = fetched(url, status=200, address=FOUR, phases=NEW)
    assert contact_of(discovery=card).has_answered_itself is is_own
    silent = fetched("https://b.example/", "timeout", address=SIX)
    assert not contact_of(discovery=card, transport=silent).has_answered_itself


def test_probe_without_requests_shows_no_contact() -> None:
    contact = contact_of(PUBLIC_IPV4)
    assert (contact.network_class, contact.has_answered_itself, contact.answered) == (
        PUBLIC_IPV4,
        False,
        None,
    )
    assert CLASSES.of(ip_address("127.0.0.1")) == THIS_MACHINE


def test_remembered_loopback_address_makes_no_target_local() -> None:
    unresolved = fetched(result="dns_failure")
    assert contact_of(THIS_MACHINE, discovery=unresolved).network_class is None
    assert contact_of(PUBLIC_IPV6, discovery=unresolved).network_class == PUBLIC_IPV6
