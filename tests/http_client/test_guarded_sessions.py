"""Guarded sessions: hosts that strangers chose are contacted at vetted addresses only."""

from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest
from tests.support.agent_check import card, check, document, names
from tests.support.hostile_server import CARD_PATH, HEALTH_PATH, Reply, as_json, redirect, serving
from tests.support.named_hosts import Named, named_hosts

from lifesign.client import fetch_health
from lifesign.domain.observation.decision import Action
from lifesign.domain.observation.results import ResultClass
from lifesign.errors import InvalidValue
from lifesign.http_client.address_guard import AddressGuard, PrivateAddressRefused
from lifesign.http_client.guarded_sessions import GuardedResolver

ELSEWHERE = "127.0.0.2"
"""A machine of our own network, as far as the host 127.0.0.1 is concerned."""


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Named:
    return named_hosts(monkeypatch)


def agent() -> dict[str, Reply]:
    """Return the answers of an agent whose document is of this moment."""
    return {CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document())}


# ── redirects to private addresses ──


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        (ELSEWHERE, "loopback (RFC 1122)"),
        ("localhost", "loopback (RFC 6761)"),
        ("a.localhost", "loopback (RFC 6761)"),
        ("[::1]", "loopback (RFC 4291)"),
        ("[::ffff:127.0.0.2]", "contains an IPv4 address: 127.0.0.2 is loopback"),
        ("[::ffff:169.254.169.254]", "169.254.169.254 is a cloud metadata address"),
        ("[64:ff9b::7f00:2]", "contains an IPv4 address: 127.0.0.2 is loopback"),
        ("169.254.169.254", "a cloud metadata address"),
        ("[fd00:ec2::254]", "a cloud metadata address"),
        ("10.0.0.5", "private (RFC 1918)"),
        ("0.0.0.0", "unspecified (RFC 1122)"),
        ("[fe80::1%25lo]", "has a zone"),
        ("127.2", "four decimal numbers"),
        ("2130706434", "four decimal numbers"),
        ("0x7f000002", "four decimal numbers"),
        ("inward.example", "127.0.0.2 is loopback"),
        ("mapped.example", "contains an IPv4 address: 127.0.0.2 is loopback"),
        ("metadata.example", "a cloud metadata address"),
        ("127.0.0.1.", "127.0.0.1 is loopback"),
    ],
)
async def test_redirect_to_a_private_network_is_not_followed(host: str, reason: str, named: Named) -> None:
    named({
        "inward.example": [[ELSEWHERE]],
        "mapped.example": [["::ffff:127.0.0.2"]],
        "metadata.example": [["169.254.169.254"]],
    })  # fmt: skip
    async with serving({}, host=ELSEWHERE) as inner:
        location = f"http://{host}:{inner.port}/admin/delete?all=1"
        checked = await check({CARD_PATH: redirect(location)})
    assert inner.heads == []
    assert checked.card_result is ResultClass.BLOCKED_ADDRESS
    assert "is not contacted" in checked.card_reason
    assert reason in checked.card_reason
    assert checked.decision.action is Action.PROCEED_AND_MONITOR


async def test_card_redirect_to_a_private_address_does_not_hide_the_agents_health() -> None:
    checked = await check({CARD_PATH: redirect("http://localhost:1/"), HEALTH_PATH: as_json(document())})
    assert (checked.card_result, checked.document_result) == (ResultClass.BLOCKED_ADDRESS, ResultClass.OK)


async def test_redirect_on_the_named_host_does_not_allow_a_private_next_hop() -> None:
    async with serving(agent(), host=ELSEWHERE) as inner:
        checked = await check({CARD_PATH: redirect("/card"), "/card": redirect(inner.url + CARD_PATH)})
    assert inner.heads == []
    assert checked.card_result is ResultClass.BLOCKED_ADDRESS


async def test_named_host_may_resolve_to_a_private_address(named: Named) -> None:
    named({"agent.example": [["127.0.0.1"]]})
    async with serving(agent()) as server:
        server.replies[CARD_PATH] = redirect("/card")
        server.replies["/card"] = as_json(card())
        checked = await fetch_health(f"http://agent.example:{server.port}")
    assert (checked.card_result, checked.document_result) == (ResultClass.OK, ResultClass.OK)


async def test_redirect_into_an_allowed_network_is_followed() -> None:
    async with serving(agent(), host=ELSEWHERE) as moved:
        replies = {CARD_PATH: redirect(moved.url + CARD_PATH)}
        checked = await check(replies, allowed_networks=["127.0.0.2"])
    assert checked.health_url == moved.url + HEALTH_PATH
    assert checked.document_result is ResultClass.OK
    assert "card_on_other_origin" in names(checked)


async def test_a_metadata_address_cannot_be_allowed() -> None:
    replies = {CARD_PATH: redirect("http://169.254.169.254/latest/meta-data/")}
    checked = await check(replies, allowed_networks=["169.254.0.0/16", "169.254.169.254"])
    assert checked.card_result is ResultClass.BLOCKED_ADDRESS


async def test_invalid_network_is_refused() -> None:
    with pytest.raises(InvalidValue, match="allowed_networks"):
        await fetch_health("http://127.0.0.1:1", allowed_networks=["nearby"])


# ── resolved addresses ──


async def test_only_allowed_addresses_of_a_name_are_contacted(named: Named) -> None:
    named({"moved.example": [[ELSEWHERE, "127.0.0.3"]]})
    async with serving(agent(), host="127.0.0.3") as moved:
        replies = {CARD_PATH: redirect(f"http://moved.example:{moved.port}{CARD_PATH}")}
        found = await check(replies, allowed_networks=["127.0.0.3"])
    async with serving(agent(), host=ELSEWHERE) as inner:
        replies = {CARD_PATH: redirect(f"http://moved.example:{inner.port}{CARD_PATH}")}
        refused = await check(replies, allowed_networks=["127.0.0.3"])
    assert found.card_result is ResultClass.OK
    assert inner.heads == []
    assert refused.card_result is ResultClass.REFUSED


async def test_name_that_resolves_differently_later_is_checked_again(named: Named) -> None:
    asked = named({"moved.example": [["127.0.0.3"], [ELSEWHERE]]})
    async with serving({}, host="127.0.0.3") as moved, serving(agent(), host=ELSEWHERE) as inner:
        moved.replies[CARD_PATH] = redirect(f"http://moved.example:{inner.port}{CARD_PATH}")
        replies = {CARD_PATH: redirect(f"http://moved.example:{moved.port}{CARD_PATH}")}
        checked = await check(replies, allowed_networks=["127.0.0.3"])
    assert len(asked) == 2
    assert inner.heads == []
    assert checked.card_result is ResultClass.BLOCKED_ADDRESS


@pytest.mark.parametrize(
    "lookups",
    [
        pytest.param([["127.0.0.1"], [ELSEWHERE]], id="one that its name leads to a moment later"),
        pytest.param([["127.0.0.1", ELSEWHERE]], id="another one of its name"),
        pytest.param([[ELSEWHERE, "127.0.0.1"]], id="another one that was silent at first"),
    ],
)
async def test_named_host_is_pinned_to_its_first_address(
    lookups: Sequence[Sequence[str]], named: Named
) -> None:
    named({"agent.example": lookups})
    async with serving({}) as server, serving(agent(), host=ELSEWHERE) as inner:
        server.replies[CARD_PATH] = redirect(f"http://agent.example:{inner.port}/admin/delete?all=1")
        checked = await fetch_health(f"http://agent.example:{server.port}")
    assert inner.heads == []
    assert checked.card_result is ResultClass.REFUSED


async def test_any_name_with_public_addresses_is_contacted(named: Named) -> None:
    named(
        {"moved.example": [["10.0.0.5", "93.184.216.34", "::1", "2606:2800:220:1::1"]], "in": [["10.0.0.5"]]}
    )
    resolver = GuardedResolver(AddressGuard(), "agent.example")
    found = await resolver.resolve("moved.example", 443)
    assert [result["host"] for result in found] == ["93.184.216.34", "2606:2800:220:1::1"]
    with pytest.raises(PrivateAddressRefused, match="private"):
        await resolver.resolve("in", 443)
    await resolver.close()


# ── sessions of the caller ──


async def test_own_session_contacts_only_the_named_origin() -> None:
    settings: dict[str, Any] = {"headers": {"Authorization": "Bearer hunter2"}}
    async with (
        serving(agent()) as other_port,
        serving({CARD_PATH: redirect(other_port.url + CARD_PATH)}) as server,
        aiohttp.ClientSession(**settings) as session,
    ):
        checked = await fetch_health(server.url, session=session)
    assert checked.document_result is ResultClass.OK
    assert server.asked(CARD_PATH)["authorization"] == "Bearer hunter2"
    assert len(other_port.heads) >= 2
    assert not any("hunter2" in head for head in other_port.heads)


async def test_own_session_contacts_only_the_named_host() -> None:
    settings: dict[str, Any] = {"headers": {"X-Secret": "hunter2"}}
    async with (
        serving(agent(), host=ELSEWHERE) as moved,
        serving({CARD_PATH: redirect(moved.url + CARD_PATH)}) as server,
        aiohttp.ClientSession(**settings) as session,
    ):
        refused = await fetch_health(server.url, session=session)
        assert moved.heads == []
        allowed = await fetch_health(server.url, session=session, allowed_networks=["127.0.0.2"])
    assert refused.card_result is ResultClass.BLOCKED_ADDRESS
    assert allowed.document_result is ResultClass.OK
    assert server.asked(CARD_PATH)["x-secret"] == "hunter2"
    assert "x-secret" not in moved.asked(HEALTH_PATH)
