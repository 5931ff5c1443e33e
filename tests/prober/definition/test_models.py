"""The probe definition."""

import re
from importlib import metadata
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lifesign.domain.a2a.agent_card import MAX_CARD_BYTES
from lifesign.domain.common import project
from lifesign.domain.health.document_reader import MAX_DOCUMENT_BYTES
from lifesign.domain.observation.witness_rule import Canary
from lifesign.domain.probing.cadence import Cadence
from lifesign.errors import InvalidValue
from lifesign.prober.definition.layer_settings import MessageSettings
from lifesign.prober.definition.models import (
    MAX_INLINE_TARGETS,
    PLACEHOLDER_CANARIES,
    PRODUCT,
    ProbeDefinition,
)

LEAST: dict[str, Any] = {
    "name": "a",
    "contact": "mailto:ops@agent.example",
    "targets": ["https://agent.example"],
}
CANARIES = [f"https://always-{number}.example/" for number in range(5)]


def defined(**members: Any) -> ProbeDefinition:
    return ProbeDefinition.model_validate(LEAST | members)


def refusal(**members: Any) -> tuple[tuple[int | str, ...], str]:
    """Return the place of the single error and the expectation there."""
    with pytest.raises(ValidationError) as caught:
        defined(**members)
    (error,) = caught.value.errors()
    return error["loc"], error["msg"]


# --- omitted settings ----------------------------------------------------------------------------


def test_defaults_of_a_definition_limit_the_load_on_targets() -> None:
    definition = defined()
    assert definition.cadence.policy() == Cadence()
    assert definition.cadence.policy().interval_s == 300
    assert (definition.ask.card, definition.ask.transport, definition.ask.health) == (True, True, True)
    assert definition.ask.message is None
    assert definition.networks_allowed == ()
    assert definition.opt_out.robots_txt
    assert definition.limits.per_host == 2
    assert definition.limits.max_card_bytes == MAX_CARD_BYTES
    assert definition.limits.max_document_bytes == MAX_DOCUMENT_BYTES
    assert definition.evidence.directory is None
    assert definition.results.jsonl is None
    assert definition.results.registry is None


def test_parsed_workflow_is_immutable() -> None:
    definition = defined()
    with pytest.raises(ValidationError):
        definition.name = "b"
    with pytest.raises(ValidationError):
        definition.limits.per_host = 1000


def test_user_agent_names_the_prober_and_a_contact() -> None:
    assert defined().user_agent.startswith(f"{PRODUCT}/0.")
    assert defined().user_agent.endswith(" (+mailto:ops@agent.example)")


def test_user_agent_without_contact_names_no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    definition = defined(contact=None)
    assert definition.user_agent == f"{PRODUCT}/{metadata.version('lifesign')}"
    assert not definition.has_contact
    monkeypatch.setattr(project, "PROJECT_URL", "https://project.example/")
    assert definition.user_agent.endswith(" (+https://project.example/)")


# --- targets -------------------------------------------------------------------------------------


def test_targets_are_normalised_and_deduplicated() -> None:
    definition = defined(targets=["agent.example", "https://AGENT.example:443/", "http://agent.example"])
    assert definition.target_urls == ("https://agent.example/", "http://agent.example/")


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (["http://127.0.0.1:1", "http://[::1]:1"], True),
        (["http://127.0.0.1:1", "https://a.example"], False),
    ],
)
def test_targets_of_this_machine_need_no_witness(targets: list[str], *, expected: bool) -> None:
    definition = ProbeDefinition.model_validate({"name": "x", "targets": targets})
    assert definition.needs_no_witness is expected


def test_at_least_one_target_is_required() -> None:
    place, expected = refusal(targets=[])
    assert place == ()
    assert {"directories", "targets"} <= set(re.findall(r"\w+", expected))


def test_invalid_target_is_refused_with_its_line() -> None:
    place, expected = refusal(targets=["https://agent.example", "ftp://agent.example"])
    assert place == ("targets", 1, "url")
    assert "https" in expected


def test_definition_above_the_number_of_targets_is_refused() -> None:
    many = [f"https://a{number}.example" for number in range(MAX_INLINE_TARGETS + 1)]
    assert len(defined(targets=many[:-1]).targets) == MAX_INLINE_TARGETS
    assert refusal(targets=many)[0] == ("targets",)


def test_directory_names_are_unique() -> None:
    both = [{"file": "old/agents.txt"}, {"file": "new/agents.txt"}]
    assert "agents.txt" in refusal(directories=both)[1]
    assert len(defined(directories=[both[0], {**both[1], "name": "new"}]).directories) == 2


# --- layers --------------------------------------------------------------------------------------


def test_definition_that_requests_nothing_is_refused() -> None:
    nothing = {"card": False, "transport": False, "health": False}
    assert "nothing is requested" in refusal(ask=nothing)[1]
    assert defined(ask=nothing | {"health": True}).ask.health


@pytest.mark.parametrize("more", [{"transport": True}, {"transport": False, "message": {"text": "hi"}}])
def test_interface_needs_the_card_that_names_it(more: dict[str, Any]) -> None:
    place, result = refusal(ask={"card": False, **more})
    assert place == ("ask",)
    assert "expected card: true" in result


# --- networks, resolvers and canaries ------------------------------------------------------------


def test_networks_are_allowed_by_name() -> None:
    allowed = defined(networks={"allow": ["127.0.0.0/8", "fd12::/16"]}).networks_allowed
    assert allowed == (ip_network("127.0.0.0/8"), ip_network("fd12::/16"))
    assert refusal(networks={"allow": ["127.0.0.1/8"]})[0] == ("networks", "allow", 0)


def test_resolvers_are_given_with_their_ports() -> None:
    servers = ["192.0.2.1", "[2001:db8::1]:5353"]
    assert defined(resolver={"servers": servers}).resolver.endpoints == (
        ("192.0.2.1", 53),
        ("2001:db8::1", 5353),
    )


def test_canaries_have_a_network_class_and_a_public_one_has_those_of_five_hosts() -> None:
    definition = defined(canaries={"public_ipv4": CANARIES})
    assert definition.canaries_by_class == {"public_ipv4": tuple(Canary(url=url) for url in CANARIES)}
    assert defined().canaries_by_class == {}
    assert refusal(canaries={"public_ipv4": CANARIES[:4]})[0] == ("canaries",)
    same_host = [*CANARIES[:4], CANARIES[0] + "x"]
    assert "5 different hosts" in refusal(canaries={"public_ipv4": same_host})[1]
    bad = [*CANARIES, "always.example"]
    assert refusal(canaries={"public_ipv6": bad})[0] == ("canaries", "public_ipv6", 5, "url")
    plain = [url.replace("https", "http") for url in CANARIES]
    assert refusal(canaries={"public_ipv4": plain})[0] == ("canaries",)


def test_one_canary_is_enough_for_an_allowed_network_and_needs_no_tls() -> None:
    networks = {"allow": ["10.1.0.0/16", "fd12:0::/16"]}
    given = {"10.1.0.0/16": [{"url": "http://10.1.0.1", "status": 401}], "fd12::/16": ["https://a.example"]}
    assert defined(networks=networks, canaries=given).canaries_by_class == {
        "10.1.0.0/16": (Canary(url="http://10.1.0.1/", status=401),),
        "fd12::/16": (Canary(url="https://a.example/"),),
    }
    # The network is not allowed, has no canary, or does not contain the canary's address.
    assert refusal(canaries=given)[0] == ("canaries",)
    assert refusal(networks=networks, canaries={"10.1.0.0/16": []})[0] == ("canaries",)
    elsewhere = {"10.1.0.0/16": ["http://10.2.0.1"]}
    assert refusal(networks=networks, canaries=elsewhere)[0] == ("canaries",)
    assert refusal(canaries={"public": CANARIES})[0][:2] == ("canaries", "public")


def test_placeholders_differ_from_own_canaries() -> None:
    hosts = [f"https://{host}/" for host in sorted(PLACEHOLDER_CANARIES)]
    definition = defined(canaries={"public_ipv4": [*hosts, *CANARIES]})
    assert definition.placeholders == tuple(hosts)
    assert defined(canaries={"public_ipv4": CANARIES}).placeholders == ()


def test_durations_of_results_can_be_configured() -> None:
    results = defined(results={"flush_seconds": 0.1, "lease_seconds": 5}).results
    assert (results.flush_seconds, results.lease_seconds) == (0.1, 5)
    assert refusal(results={"lease_seconds": 0.5})[0] == ("results", "lease_seconds")


# --- without a file ------------------------------------------------------------------------------


def test_probe_of_urls_needs_no_file() -> None:
    definition = ProbeDefinition.for_urls(["agent.example", "http://127.0.0.1:80"], networks=["127.0.0.0/8"])
    assert definition.target_urls == ("https://agent.example/", "http://127.0.0.1/")
    assert definition.networks_allowed == (ip_network("127.0.0.0/8"),)
    assert definition.contact is None
    assert definition.ask.message is None


def test_probe_accepts_a_message_and_a_timeout() -> None:
    definition = ProbeDefinition.for_urls(["agent.example"], message="hi", total_seconds=3)
    assert definition.ask.message == MessageSettings(text="hi")
    assert definition.timeouts.total_seconds == 3


def test_target_alive_for_probe_is_alive_in_census() -> None:
    for seconds in (None, 7, 60):
        looked = ProbeDefinition.for_urls(["agent.example"], total_seconds=seconds).timeouts
        counted = ProbeDefinition.for_directory("urls.txt", total_seconds=seconds).timeouts
        assert counted == looked
        # A limit of a minute in all may be the limit of the first byte too.
        assert looked.first_byte_seconds == max(10, seconds or 0)


@pytest.mark.parametrize(
    ("urls", "settings", "name"),
    [
        ([], {}, "URL"),
        (["ftp://agent.example"], {}, "URL"),
        (["a.example"], {"networks": ["10.0.0.1/8"]}, "network"),
        (["a.example"], {"message": ""}, "ask.message.text"),
        (["a.example"], {"total_seconds": 0}, "timeouts.total_seconds"),
        (["a.example"], {"contact": "me"}, "contact"),
    ],
)
def test_invalid_probe_setting_is_refused_by_name(
    urls: list[str], settings: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        ProbeDefinition.for_urls(urls, **settings)
    assert caught.value.name == name
    assert "should" not in caught.value.expected
    assert "pattern" not in caught.value.expected


def test_paths_of_a_definition_without_a_file_are_unchanged() -> None:
    assert defined(evidence={"directory": "kept"}).evidence.directory == Path("kept")
