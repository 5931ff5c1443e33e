import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from lifesign.client.candidate_urls import parse_agent_url
from lifesign.domain.net.allowed_addresses import AddressRefused, vet_url
from lifesign.domain.net.international_host import ascii_host, with_ascii_host
from lifesign.domain.targets.target import read_target, target_id
from lifesign.errors import InvalidValue
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.network.exclusion_list import read_opt_outs


@pytest.mark.parametrize(
    ("url", "spelled"),
    [
        ("b\u00fccher.example", "https://xn--bcher-kva.example/"),
        ("HTTPS://B\u00dcCHER.Example:443", "https://xn--bcher-kva.example/"),
        # An umlaut of two code points.
        ("https://bu\u0308cher.example", "https://xn--bcher-kva.example/"),
        ("http://m\u00fcnchen.example:8080/a2a?q=1#top", "http://xn--mnchen-3ya.example:8080/a2a?q=1"),
        ("https://stra\u00dfe.example/", "https://xn--strae-oqa.example/"),
        ("https://\u4f8b\u3048.\u30c6\u30b9\u30c8/", "https://xn--r8jz45g.xn--zckzah/"),
        # Full width, and a full stop of its own.
        ("https://\uff41gent\u3002example", "https://agent.example/"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/"),
    ],
)
def test_a_target_is_spelled_in_ascii_and_is_one_target(url: str, spelled: str) -> None:
    assert read_target(url) == spelled
    assert read_target(spelled) == spelled
    assert target_id(str(read_target(url))) == target_id(spelled)


def test_visually_similar_names_are_two_targets() -> None:
    # The first letter is Cyrillic.
    assert read_target("https://\u0430gent.example/") == "https://xn--gent-43d.example/"


@pytest.mark.parametrize(
    "host",
    [
        "\u2100.example",
        "a..\u00fc",
        "\u00fc" * 64 + ".example",
        "\u00fc" * 1_000_000,
        "-\u00fc-.example",
        "\U0001f4a9.example",
        "\u0301a.example",
        "\u05d0a1.example",
        "b\u00fccher.exa_mple",
        "\ud800.example",
    ],
)
def test_invalid_name_is_refused_with_the_reason(host: str) -> None:
    refused = ascii_host(host)
    assert isinstance(refused, AddressRefused)
    assert refused.reason.isascii()
    assert host not in refused.reason
    assert isinstance(read_target(f"https://{host}/"), AddressRefused)
    with pytest.raises(InvalidValue):
        parse_agent_url(f"https://{host}/")


@pytest.mark.parametrize(
    "url", ["https://\u2460\u2461\u2466.\u24ea.\u24ea.\u2460/", "https://\uff11\uff12\uff17.0.0.1/"]
)
def test_unicode_digits_of_an_address_are_normalised(url: str) -> None:
    assert read_target(url) == "https://127.0.0.1/"
    vetted = vet_url(str(with_ascii_host(url)))
    assert isinstance(vetted, AddressRefused)
    assert vetted.name == "blocked_address"


@pytest.mark.parametrize(
    "url",
    ["https://us\u00e9r:p@agent.example/", "https://agent.example/caf\u00e9", "ftp://b\u00fccher.example"],
)
def test_other_invalid_hosts_are_refused(url: str) -> None:
    assert isinstance(read_target(url), AddressRefused)


def test_international_host_is_ascii_in_urls_definitions_and_opt_outs() -> None:
    url, host = "https://b\u00fccher.example/", "xn--bcher-kva.example"
    assert str(parse_agent_url(url).url) == f"https://{host}/"
    assert ProbeDefinition.for_urls([url]).target_urls == (f"https://{host}/",)
    hosts = ["one.example", "two.example", "three.example", "four.example"]
    canaries = [url, *(f"https://{name}/" for name in hosts)]
    definition = ProbeDefinition.model_validate({
        "name": "a", "contact": "mailto:a@b.example", "targets": ["a.example"],
        "canaries": {"public_ipv4": canaries},
        "opt_out": {"hosts": ["b\u00fccher.example", ".b\u00fccher.example"]},
        "results": {"registry": url},
    })  # fmt: skip
    assert definition.canaries["public_ipv4"][0].url == f"https://{host}/"
    assert definition.opt_out.hosts == (host, f".{host}")
    assert definition.results.registry == f"https://{host}/"
    assert read_opt_outs([".b\u00fccher.example"], "list").entry_for(f"https://a.{host}/") is not None
    with pytest.raises(ValueError, match="international name"):
        ProbeDefinition.model_validate({**definition.model_dump(), "opt_out": {"hosts": ["\u2100.example"]}})


@given(st.text(max_size=30))
def test_accepted_international_host_equals_that_of_yarl(text: str) -> None:
    host = ascii_host(text)
    if isinstance(host, AddressRefused) or text.isascii():
        return
    assert set(host) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")
    spelled = read_target(f"https://{text}/")
    if isinstance(spelled, str):
        assert spelled == read_target(spelled)
        assert URL(spelled).raw_host == spelled.removeprefix("https://").removesuffix("/")
