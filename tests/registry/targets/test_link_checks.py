"""Proofs of links by a token that the target's origin serves."""

import pytest
from tests.registry.targets.test_link_decisions import PUBLIC_URL, crawl, link_events, links
from tests.support.databases import WoundClock
from tests.support.directory_api import put
from tests.support.hostile_server import HostileServer, answer, redirect, serving
from tests.support.registry_api import AGENTS, RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.domain.targets.link_proof import CHECK_SECONDS, PROOF_GRACE_SECONDS, RELINK_SECONDS
from lifesign.domain.targets.opt_out_proof import PROOF_PATH, TOKEN_TTL_SECONDS
from lifesign.registry.events.verify_events import verify_log
from lifesign.registry.targets import claim_target
from lifesign.registry.targets.link_checks import OPEN_CHECK_SECONDS
from lifesign.storage.engine.transaction import Database


@pytest.fixture
async def api(database: Database, clock: WoundClock) -> RegistryApi:
    """A registry that may ask servers on this machine for proofs."""
    api = RegistryApi(database, clock, public_url=PUBLIC_URL, webhook_networks=["127.0.0.0/8"])
    await api.add_keys()
    return api


async def ask(api: RegistryApi, server: HostileServer, agent_id: str, key: str | Role = Role.ADMIN) -> str:
    asked = await api.ask("POST", f"{AGENTS}/{agent_id}/links", {"url": server.url}, key=key)
    assert asked.status == 201, asked.body
    assert asked.json()["proof_url"] == server.url + PROOF_PATH
    return str(asked.json()["token"])


async def listed(api: RegistryApi, server: HostileServer, *agents: str) -> dict[str, str]:
    """Let a directory list the server and agents claim it; return their keys."""
    await put(api, "list", "1", [server.url])
    keys = {}
    for agent_id in agents:
        record = await api.register(agent_id, endpoint=server.url)
        keys[agent_id] = str(record["agent_key"])
    return keys


async def test_served_token_links_agent_and_target(api: RegistryApi, clock: WoundClock) -> None:
    async with serving({PROOF_PATH: answer(404)}) as server:
        keys = await listed(api, server, "agent-1")
        keeper = api.registry.link_checker
        token = await ask(api, server, "agent-1", keys["agent-1"])
        assert token.startswith("ahl_")
        await keeper.check_some()
        ((_, state),) = await links(api)
        assert state == "claimed"
        server.replies[PROOF_PATH] = answer(200, b"aho_of-an-opt-out\n" + token.encode() + b"\n")
        assert await ask(api, server, "agent-1", keys["agent-1"]) == token
        await keeper.check_some()
        assert len(server.heads) == 1, "a second request within a minute caused a check"
        clock.advance(OPEN_CHECK_SECONDS)
        await keeper.check_some()
        ((target, state),) = await links(api)
        assert state == "linked"
        assert await link_events(api) == [("agent.linked", "agent-1", "token")]
        # Whatever the card says, results go into the agent's record now.
        assert await crawl(api, url=f"{server.url}/", card_url=None) == "accepted"
        # It is checked daily: a file that does not hold it ends the link, a server that fails does not.
        server.replies[PROOF_PATH] = answer(503)
        clock.advance(CHECK_SECONDS)
        await keeper.check_some()
        assert await links(api) == [(target, "linked")]
        server.replies[PROOF_PATH] = answer(404)
        clock.advance(CHECK_SECONDS)
        await keeper.check_some()
        assert await links(api) == [(target, "claimed")]
        assert (await link_events(api))[-1] == ("agent.unlinked", "agent-1", "proof_failed")
        assert len(server.heads) == 4
    report = await api.database.read(verify_log)
    assert report.is_good, report.differences


async def test_unreachable_server_ends_the_link_after_the_grace_period(
    api: RegistryApi, clock: WoundClock
) -> None:
    async with serving({PROOF_PATH: answer(404)}) as server:
        await listed(api, server, "agent-1")
        server.replies[PROOF_PATH] = answer(200, (await ask(api, server, "agent-1")).encode())
        await api.registry.link_checker.check_some()
        server.replies[PROOF_PATH] = answer(500)
        for day in range(1, 8):
            clock.advance(CHECK_SECONDS)
            await api.registry.link_checker.check_some()
            ((_, state),) = await links(api)
            assert (state == "linked") is (day * CHECK_SECONDS < PROOF_GRACE_SECONDS)
        assert (await link_events(api))[-1] == ("agent.unlinked", "agent-1", "proof_expired")


@pytest.mark.both_databases
async def test_two_proven_claims_link_neither_with_one_event(api: RegistryApi, clock: WoundClock) -> None:
    async with serving({PROOF_PATH: answer(404)}) as server:
        await listed(api, server, "agent-1", "agent-2")
        first, second = [(await ask(api, server, each)).encode() for each in ("agent-1", "agent-2")]
        keeper = api.registry.link_checker
        server.replies[PROOF_PATH] = answer(200, first + b"\n" + second)
        for _ in range(3):
            await keeper.check_some()
            clock.advance(CHECK_SECONDS)
        assert [kind for kind, _, _ in await link_events(api)] == ["agent.link_conflict"]
        for agent_id in ("agent-1", "agent-2"):
            ((_, state),) = await links(api, agent_id)
            assert state == "proven"
        server.replies[PROOF_PATH] = answer(200, second)
        await keeper.check_some()
        assert (await link_events(api))[-1] == ("agent.linked", "agent-2", "token")
        # The other one proves it again while the two are linked.
        server.replies[PROOF_PATH] = answer(200, first + b"\n" + second)
        await ask(api, server, "agent-1")
        clock.advance(max(CHECK_SECONDS, RELINK_SECONDS))
        await keeper.check_some()
        assert (await link_events(api))[-2:] == [
            ("agent.unlinked", "agent-2", "two_claims"),
            ("agent.link_conflict", "agent-1", "token"),
        ]


async def test_token_proves_only_its_own_agents_claim(api: RegistryApi) -> None:
    async with serving({PROOF_PATH: answer(404)}) as server:
        await listed(api, server, "agent-1", "stranger")
        token = await ask(api, server, "stranger")
        opt_out = (await api.ask("POST", "/api/v1/opt-outs", {"url": server.url})).json()["token"]
        await ask(api, server, "agent-1")
        server.replies[PROOF_PATH] = answer(200, opt_out.encode())
        await api.registry.link_checker.check_some()
        assert await link_events(api) == []
        server.replies[PROOF_PATH] = redirect("/elsewhere")
        server.replies["/elsewhere"] = answer(200, token.encode())
        api.clock.advance(OPEN_CHECK_SECONDS)
        await api.registry.link_checker.check_some()
        assert await link_events(api) == []


async def test_record_shows_when_its_token_was_last_requested(api: RegistryApi, clock: WoundClock) -> None:
    async with serving({PROOF_PATH: answer(404)}) as server:
        await listed(api, server, "agent-1")
        await ask(api, server, "agent-1")
        (link,) = (await api.record("agent-1"))["links"]
        assert (link["token_requested_at"][:19], "token_checked_at" in link) == (api.time_text()[:19], False)
        clock.advance(5)
        await api.registry.link_checker.check_some()
        (link,) = (await api.record("agent-1"))["links"]
        assert link["token_checked_at"][:19] == api.time_text()[:19]
        assert "token_refusal" not in link


async def test_token_on_a_private_network_is_reported_as_not_fetched(
    database: Database, clock: WoundClock
) -> None:
    api = RegistryApi(database, clock, public_url=PUBLIC_URL)
    await api.add_keys()
    async with serving({PROOF_PATH: answer(404)}) as server:
        await listed(api, server, "agent-1")
        await ask(api, server, "agent-1")
        await api.registry.link_checker.check_some()
        assert server.heads == []
    (link,) = (await api.record("agent-1"))["links"]
    assert "webhook_networks" in link["token_refusal"]


async def test_token_is_issued_only_to_claimants(api: RegistryApi) -> None:
    await put(api, "list", "1", ["https://agent.example/"])
    agent = await api.register("agent-1", endpoint="https://agent.example:8443/")
    path = f"{AGENTS}/agent-1/links"
    for url, code in (
        ("https://agent.example/", "not_claimed"),
        ("https://agent.example:8443/", "no_target"),
        ("https://{tenant}.example/", "invalid_url"),
    ):
        refused = await api.ask("POST", path, {"url": url}, key=agent["agent_key"])
        assert (refused.status, refused.json()["error"]["details"]["faults"][0]["name"]) == (422, code)
    for key in (Role.READER, Role.PROBER, await api.add_agent_key("agent-2")):
        refused = await api.ask("POST", path, {"url": "https://agent.example/"}, key=key)
        assert refused.status == 403


async def test_number_of_link_tokens_is_bounded_and_they_expire(
    api: RegistryApi, clock: WoundClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_target, "MAX_TOKENS", 2)
    await put(api, "list", "1", ["https://agent.example/"])
    for number in range(3):
        await api.register(f"agent-{number}", endpoint="https://agent.example/")
    found = []
    for number in range(3):
        asked = await api.ask("POST", f"{AGENTS}/agent-{number}/links", {"url": "https://agent.example/"})
        found.append(asked.status)
    assert found == [201, 201, 409]
    clock.advance(TOKEN_TTL_SECONDS + 1)
    await api.registry.link_checker.check_some()
    again = await api.ask("POST", f"{AGENTS}/agent-2/links", {"url": "https://agent.example/"})
    assert again.status == 201, again.body


async def test_unproven_claims_are_not_stored(api: RegistryApi) -> None:
    """However many agents claim a foreign target: nothing is stored, and no request is sent."""
    async with serving({PROOF_PATH: answer(404)}) as server:
        await listed(api, server, *(f"agent-{number}" for number in range(50)))
        await api.registry.link_checker.check_some()
        assert server.heads == []
        tables = ("target_claims", "links")
        counts = await api.database.read(
            lambda transaction: [
                transaction.connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar()  # noqa: S608
                for table in tables
            ]
        )
        assert counts == [0, 0]
