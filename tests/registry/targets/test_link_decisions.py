"""Links between registered agents and crawled targets, from the card to the record."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import text
from tests.support.databases import WoundClock
from tests.support.directory_api import feed, put, urls_in
from tests.support.registry_api import AGENTS, RegistryApi
from tests.support.servers import PATIENCE_SECONDS

from lifesign.domain.access.permissions import Role
from lifesign.domain.models.base import moment
from lifesign.domain.targets.link_proof import PROOF_GRACE_SECONDS, RELINK_SECONDS
from lifesign.domain.targets.target import host_of, shard_of, target_id
from lifesign.registry.events.verify_events import verify_log
from lifesign.registry.targets import link_decisions
from lifesign.registry.targets.opt_out_origins import prove
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.probing import liveness, probe_results
from lifesign.storage.targets import target_rows

PUBLIC_URL = "https://registry.example"
ORIGIN = "https://agent.example/"
CARD = "https://agent.example/.well-known/agent-card.json"
TARGET = target_id(ORIGIN)
_WAITING = text("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")


@pytest.fixture
async def api(database: Database, clock: WoundClock) -> AsyncIterator[RegistryApi]:
    """A registry that knows its public URL, and a directory that lists the agent's origin."""
    api = RegistryApi(database, clock, public_url=PUBLIC_URL)
    await api.add_keys()
    await put(api, "list", "1", [ORIGIN])
    yield api
    # Whatever happened, the log gives the stored states.
    report = await database.read(verify_log)
    assert report.is_good, (report.fault, report.differences)


def probe(clock: WoundClock, url: str = ORIGIN, **members: Any) -> dict[str, Any]:
    """Return the result of a probe that found the card and an answering interface."""
    return {
        "target_url": url,
        "observed_at": moment(clock.at_s).isoformat(),
        "discovery": {"result": "ok"},
        "transport": {"result": "ok"},
        **members,
    }


async def crawl(
    api: RegistryApi,
    agent_id: str | None = None,
    *,
    url: str = ORIGIN,
    card_url: str | None = CARD,
    registry: str = f"{PUBLIC_URL}/",
    **members: Any,
) -> str:
    """Report a probe of a target whose card names this agent, let links be decided, return the outcome."""
    memory: dict[str, Any] = {"card_url": card_url}
    if agent_id is not None:
        memory |= {"link_registry": registry, "link_agent_id": agent_id}
    answer = await api.report(probe(api.clock, url, **members), memories=[memory])
    assert answer.status == 200, answer.body
    await api.registry.link_checker.check_some()
    return str(answer.json()["results"][0]["outcome"])


async def links(api: RegistryApi, agent_id: str = "agent-1") -> list[tuple[str, str]]:
    """Return target and state of each link that an agent's record shows."""
    shown = (await api.record(agent_id)).get("links", [])
    return [(link["target_id"], link["state"]) for link in shown]


async def link_events(api: RegistryApi) -> list[tuple[str, str, str]]:
    """Return type, agent and proof or reason of all events about links."""
    found = []
    for event in await api.events():
        if event["type"] in {"agent.linked", "agent.unlinked", "agent.link_conflict"}:
            result = event["payload"]
            found.append((event["type"], result["agent_id"], result.get("proof") or result["reason"]))
    return found


async def statuses(api: RegistryApi) -> dict[str, str]:
    """Return the status of every agent that is listed."""
    answer = await api.ask("GET", AGENTS)
    return {agent["agent_id"]: agent["status"] for agent in answer.json()["agents"]}


async def census(api: RegistryApi) -> dict[str | None, int]:
    answer = await api.ask("GET", "/api/v1/census", key=Role.READER)
    return {count.get("result"): count["count"] for count in answer.json()["targets"]}


async def probed_urls(api: RegistryApi) -> list[str]:
    hosts = ("agent.example", "another.example", "elsewhere.example", "mirror.example", "other.example")
    return await urls_in(api, *sorted({shard_of(host) for host in hosts}))


async def test_card_with_the_agent_id_merges_agent_and_target(api: RegistryApi) -> None:
    await crawl(api)
    assert (await api.record(TARGET))["status"] == "active"
    await api.register("agent-1", card_url=CARD)
    assert await links(api) == [(TARGET, "claimed")]
    assert await crawl(api, "agent-1") == "accepted"
    assert await links(api) == [(TARGET, "linked")]
    assert await statuses(api) == {"agent-1": "active"}
    assert await api.lifecycle(TARGET) == [
        ("registering", "active", "registered"),
        ("active", "deregistered", "linked"),
    ]
    explanation = (await api.record(TARGET))["explanation"]
    assert (explanation.split()[0], explanation.split()[-1]) == ("linked:", "agent-1")
    assert await link_events(api) == [("agent.linked", "agent-1", "card")]
    assert "observed" not in await api.record("agent-1")
    # From now on what is seen of the target is seen of the agent; the target stays in its directory.
    assert await crawl(api, "agent-1") == "accepted"
    record = await api.record("agent-1")
    assert record["observed"]["transport"]["result"] == "ok"
    shown = (await api.ask("GET", f"/api/v1/targets/{TARGET}")).json()
    assert (shown["directories"], "gone_at" in shown) == (["list"], False)
    assert await census(api) == {"ok": 1}


async def test_linked_agent_disputes_the_kind_of_a_list_of_servers(api: RegistryApi) -> None:
    async def kind() -> str | None:
        (target,) = (await feed(api, shard_of(host_of(ORIGIN))))["targets"]
        return None if (stated := target.get("kind")) is None else str(stated)

    await put(api, "list", "2", [ORIGIN], kind="mcp")
    assert await kind() == "mcp"
    await api.register("agent-1", card_url=CARD)
    await crawl(api, "agent-1")
    assert (await links(api), await kind()) == ([(TARGET, "linked")], "disputed")
    await put(api, "list", "3", [ORIGIN], kind="a2a")
    assert await kind() == "a2a"


@pytest.mark.parametrize("monitoring", ["heartbeat", "probe", "both"])
async def test_monitoring_of_the_agent_decides_whether_target_results_count(
    api: RegistryApi, clock: WoundClock, monitoring: str
) -> None:
    config = {"interval_seconds": 300, "unhealthy_after_seconds": 900, "dead_after_seconds": 3600}
    agent = await api.register("agent-1", card_url=CARD, monitoring=monitoring, heartbeat_config=config)
    await crawl(api, "agent-1")
    await crawl(api, "agent-1")
    for _ in range(16):
        clock.advance(300)
        await api.send_heartbeat("agent-1", agent["agent_key"])
        failed: dict[str, Any] = {"discovery": None, "transport": {"result": "timeout"}}
        assert await crawl(api, "agent-1", **failed) == "accepted"
        await api.sweep()
    record = await api.record("agent-1")
    assert record["status"] == ("dead" if monitoring == "probe" else "active")
    assert monitoring == "probe" or record["is_unreachable"]


async def test_a_url_is_probed_once_while_linked_and_twice_before_and_after(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "list", "2", [CARD])
    await api.register("agent-1", card_url=CARD, monitoring="probe")
    assert await probed_urls(api) == [CARD, CARD]
    await crawl(api, "agent-1", url=CARD)
    assert await probed_urls(api) == [CARD]
    own = (await api.ask("GET", "/api/v1/targets/agent-1")).json()
    assert own["gone_reason"] == "linked"
    # A new registration changes nothing.
    await api.register("agent-1", card_url=CARD, monitoring="probe", supersede=True)
    await api.registry.link_checker.check_some()
    assert await probed_urls(api) == [CARD]
    clock.advance(86_400)
    await crawl(api, None, url=CARD)
    assert await probed_urls(api) == [CARD, CARD]
    assert (await link_events(api))[-1] == ("agent.unlinked", "agent-1", "proof_failed")


@pytest.mark.postgresql_only
@pytest.mark.parametrize("begins", [True, False])
async def test_result_that_waits_for_a_change_of_the_link_does_not_count(
    api: RegistryApi, clock: WoundClock, *, begins: bool
) -> None:
    # On SQLite no caller waits inside a transaction: there is one writer.
    await crawl(api)
    await api.register("agent-1", card_url=CARD)
    if begins:
        memory = {"card_url": CARD, "link_registry": PUBLIC_URL, "link_agent_id": "agent-1"}
        await api.report(probe(clock), memories=[memory])
    else:
        await crawl(api, "agent-1")
        clock.advance(PROOF_GRACE_SECONDS + 1)
        await api.report(probe(clock), memories=[{"card_url": CARD}])
    url = api.database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    other = open_database(url, clock=api.clock.now_s)
    is_held, is_deciding = asyncio.Event(), asyncio.Event()

    def hold(transaction: Transaction) -> None:
        target_rows.next_version(transaction)
        is_held.set()
        while not (waiting := transaction.connection.scalar(_WAITING)):
            pass
        is_deciding.set()
        while transaction.connection.scalar(_WAITING) <= waiting:
            pass

    async with asyncio.timeout(PATIENCE_SECONDS):
        holding = asyncio.create_task(other.write(hold))
        await is_held.wait()
        deciding = asyncio.create_task(api.registry.link_checker.check_some())
        await is_deciding.wait()
        answer = await api.report(probe(clock))
        await asyncio.gather(deciding, holding)
    await other.close()
    assert answer.json()["counts"] == {"ignored": 1}
    assert await statuses(api) == {"agent-1": "active"}
    assert await links(api) == [(TARGET, "linked" if begins else "claimed")]
    outcome = (await api.report(probe(clock))).json()["counts"]
    assert outcome == {"accepted": 1}
    assert await statuses(api) == (
        {"agent-1": "active"} if begins else {"agent-1": "active", TARGET: "active"}
    )


async def test_a_claim_that_is_not_proven_changes_nothing(api: RegistryApi) -> None:
    await crawl(api)
    before = await api.record(TARGET)
    stranger = await api.register("stranger", card_url=CARD, endpoint=ORIGIN, monitoring="both")
    await crawl(api)
    key, tag = stranger["agent_key"], {"if-match": stranger["etag"]}
    body = {"status": "draining"}
    drained = await api.ask("PATCH", f"{AGENTS}/stranger/status", body, key=key, headers=tag)
    assert drained.status == 200
    assert await links(api, "stranger") == [(TARGET, "claimed")]
    after = await api.record(TARGET)
    assert "links" not in after
    for member in ("status", "version", "incarnation", "registered_at"):
        assert after[member] == before[member]
    assert await link_events(api) == []
    assert ORIGIN in await probed_urls(api)


@pytest.mark.parametrize(
    ("expected", "why"),
    [
        ({"registry": "https://other.example"}, "another registry"),
        ({"registry": "http://registry.example"}, "the registry over plain http"),
        ({"agent_id": "agent-2"}, "another agent"),
        ({"agent_id": "nobody"}, "no agent"),
        ({"agent_id": TARGET}, "the target's own record"),
    ],
)
async def test_card_with_another_registry_or_agent_is_no_proof(
    api: RegistryApi, expected: dict[str, str], why: str
) -> None:
    await api.register("agent-1", card_url=CARD)
    await api.register("agent-2", card_url="https://elsewhere.example/card.json")
    await crawl(api, **{"agent_id": "agent-1", **expected})
    assert await links(api) == [(TARGET, "claimed")], why
    assert await link_events(api) == []


async def test_a_target_that_redirects_to_an_agents_card_is_not_that_agent(api: RegistryApi) -> None:
    """The card at its destination names the agent, but the prober requested another URL."""
    other = "https://mirror.example/"
    await put(api, "mirrors", "1", [other])
    await api.register("agent-1", card_url=CARD)
    await crawl(api, "agent-1", url=other, card_url="https://mirror.example/.well-known/agent-card.json")
    assert await links(api) == []
    assert (await api.record(target_id(other)))["status"] == "active"


@pytest.mark.parametrize(
    ("card_url", "urls"),
    [
        (CARD, {"card_url": CARD}),
        (None, {"card_url": CARD, "endpoint": "https://evil.example/"}),
    ],
)
async def test_a_prober_links_no_agent_of_another_host(
    api: RegistryApi, card_url: str | None, urls: dict[str, str]
) -> None:
    """A hostile prober key reports that a target of its share has the card of an agent outside of it."""
    other = "https://evil.example/"
    await put(api, "others", "1", [other])
    await api.register("agent-1", monitoring="probe", **urls)
    await crawl(api, "agent-1", url=other, card_url=card_url)
    assert "linked" not in dict(await links(api)).values()
    assert "gone_reason" not in (await api.ask("GET", "/api/v1/targets/agent-1")).json()
    assert await link_events(api) == []


async def stored_claims(api: RegistryApi) -> int:
    count = "SELECT count(*) FROM target_claims"
    return await api.database.read(
        lambda transaction: int(transaction.connection.exec_driver_sql(count).scalar() or 0)
    )


async def test_cards_on_other_hosts_that_name_an_agent_store_nothing(api: RegistryApi) -> None:
    others = [f"https://evil-{number}.example/" for number in range(30)]
    await put(api, "others", "1", others)
    await api.register("agent-1", card_url=CARD)
    memory = {"card_url": CARD, "link_registry": f"{PUBLIC_URL}/", "link_agent_id": "agent-1"}
    answer = await api.report(*(probe(api.clock, url) for url in others), memories=[memory] * len(others))
    assert answer.json()["counts"] == {"accepted": len(others)}
    assert await stored_claims(api) == 0


async def test_number_of_targets_linked_by_cards_to_one_agent_is_bounded(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_decisions, "MAX_CARDS", 4)
    paths = [f"{ORIGIN}{number}" for number in range(6)]
    await put(api, "others", "1", paths)
    await api.register("agent-1", card_url=CARD)
    for _ in range(2):
        for path in paths:
            await crawl(api, "agent-1", url=path)
        assert await stored_claims(api) == 4
    # A removed claim makes room for another one.
    await crawl(api, None, url=paths[0])
    await crawl(api, "agent-1", url=paths[-1])
    assert (target_id(paths[-1]), "linked") in await links(api)


async def test_result_without_a_card_neither_proves_nor_ends_a_link(
    api: RegistryApi, clock: WoundClock
) -> None:
    await api.register("agent-1", card_url=CARD)
    await crawl(api, "agent-1", discovery=None)
    assert await links(api) == [(TARGET, "claimed")]
    await crawl(api, "agent-1")
    for result in ("timeout", "refused", "gated", "http_error", "tls_failure", "dns_failure"):
        clock.advance(3600)
        await crawl(api, None, discovery={"result": result}, transport={"result": "timeout"})
        assert await links(api) == [(TARGET, "linked")], result
    clock.advance(PROOF_GRACE_SECONDS)
    await api.registry.link_checker.check_some()
    assert (await link_events(api))[-1] == ("agent.unlinked", "agent-1", "proof_expired")


@pytest.mark.both_databases
@pytest.mark.parametrize("discovery", ["ok", "not_an_agent"])
async def test_card_without_the_agent_id_ends_the_link(
    api: RegistryApi, clock: WoundClock, discovery: str
) -> None:
    await api.register("agent-1", card_url=CARD)
    await crawl(api, "agent-1")
    await crawl(api, "agent-1")
    clock.advance(86_400)
    await crawl(api, None, discovery={"result": discovery})
    assert (await link_events(api))[-1] == ("agent.unlinked", "agent-1", "proof_failed")
    record = await api.record("agent-1")
    assert (record["status"], "observed" in record) == ("active", False)
    # The target's record restarts with its next liveness signal.
    assert await crawl(api, None) == "accepted"
    target = await api.record(TARGET)
    assert (target["status"], target["health"], target["card_url"]) == ("active", "unknown", CARD)


async def test_flapping_link_causes_few_events(api: RegistryApi, clock: WoundClock) -> None:
    await api.register("agent-1", card_url=CARD)
    for _ in range(20):
        await crawl(api, "agent-1")
        await crawl(api, None)
        clock.advance(300)
    found = [kind for kind, _, _ in await link_events(api)]
    assert found.count("agent.linked") == 1 + (20 * 300 - 1) // int(RELINK_SECONDS)


@pytest.mark.both_databases
async def test_deregistration_restores_the_targets_record(api: RegistryApi) -> None:
    agent = await api.register("agent-1", card_url=CARD, monitoring="both")
    await crawl(api, "agent-1")
    await crawl(api, "agent-1")
    gone = await api.ask("DELETE", f"{AGENTS}/agent-1", key=agent["agent_key"])
    assert gone.status in {200, 204}
    # A result from before the end of the link revives no agent.
    answer = await api.report(probe(api.clock), memories=[{"card_url": CARD}])
    assert answer.json()["counts"] == {"no_liveness_signal_yet": 1}
    await api.registry.link_checker.check_some()
    assert (await link_events(api))[-1] == ("agent.unlinked", "agent-1", "agent_deregistered")
    await crawl(api, "agent-1")
    assert await statuses(api) == {TARGET: "active"}
    own = (await api.ask("GET", "/api/v1/targets/agent-1")).json()
    assert (own["gone_reason"], own["is_registered"]) == ("deregistered", False)


async def test_agent_whose_link_ends_by_an_opt_out_is_unknown_because_of_it(
    api: RegistryApi, clock: WoundClock
) -> None:
    await api.register("agent-1", card_url=CARD, monitoring="probe")
    await crawl(api, "agent-1")
    asked = (await api.ask("POST", "/api/v1/opt-outs", {"url": ORIGIN}, key=Role.COORDINATOR)).json()
    await api.database.write(
        lambda transaction: prove(transaction, asked["origin"], asked["token"], "server")
    )
    await api.registry.link_checker.check_some()
    assert (await link_events(api))[-1] == ("agent.unlinked", "agent-1", "target_gone")
    clock.advance(1_000)
    record = await api.record("agent-1")
    assert (record["health"], record["unknown_reason"]) == ("unknown", "not_allowed")


async def test_changed_url_of_an_agent_ends_its_claim(api: RegistryApi) -> None:
    agent = await api.register("agent-1", card_url=CARD)
    await crawl(api, "agent-1")
    moved = {"card_url": "https://elsewhere.example/card.json"}
    tag = (await api.record("agent-1"))["etag"]
    changed = await api.ask(
        "PATCH", f"{AGENTS}/agent-1", moved, key=agent["agent_key"], headers={"if-match": tag}
    )
    assert changed.status == 200, changed.body
    await api.registry.link_checker.check_some()
    assert (await link_events(api))[-1] == ("agent.unlinked", "agent-1", "claim_ended")
    assert await links(api) == []


@pytest.mark.both_databases
async def test_unlisted_linked_target_ends_only_probing(api: RegistryApi) -> None:
    await api.register("agent-1", card_url=CARD, monitoring="probe")
    await crawl(api, "agent-1")
    await put(api, "list", "2", ["https://another.example/"], allow_shrink=True)
    await api.registry.link_checker.check_some()
    assert (await link_events(api))[-1] == ("agent.unlinked", "agent-1", "target_gone")
    assert (await statuses(api))["agent-1"] == "active"
    # It registered to be probed, and so it is.
    assert await probed_urls(api) == [CARD, "https://another.example/"]


async def test_an_erased_agent_is_linked_to_nothing(api: RegistryApi) -> None:
    await api.register("agent-1", card_url=CARD)
    await crawl(api, "agent-1")
    assert (await api.ask("DELETE", f"{AGENTS}/agent-1/record")).status == 200
    await crawl(api, "agent-1")
    assert await statuses(api) == {TARGET: "active"}


@pytest.mark.both_databases
async def test_erasing_the_targets_record_ends_the_link(api: RegistryApi) -> None:
    await crawl(api)
    await api.register("agent-1", card_url=CARD, monitoring="probe")
    await crawl(api, "agent-1")
    assert await probed_urls(api) == [ORIGIN]
    assert (await api.ask("DELETE", f"{AGENTS}/{TARGET}/record")).status == 200
    assert (await link_events(api))[-1] == ("agent.unlinked", "agent-1", "target_gone")
    assert await probed_urls(api) == [CARD]


async def test_two_targets_of_one_agent_do_not_count_twice_in_its_record(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "cards", "1", [CARD])
    await api.register("agent-1", card_url=CARD)
    for _ in range(2):
        await crawl(api, "agent-1")
        await crawl(api, "agent-1", url=CARD)
    assert sorted(await links(api)) == sorted([(TARGET, "linked"), (target_id(CARD), "linked")])
    clock.advance(300)
    failed: dict[str, Any] = {"discovery": None, "transport": {"result": "timeout"}}
    await crawl(api, "agent-1", **failed)
    await crawl(api, "agent-1", url=CARD, **failed)
    assert (await api.record("agent-1"))["observed"]["failures_in_row"] == 1


@pytest.mark.parametrize("monitoring", ["probe", "heartbeat"])
async def test_recheck_of_a_linked_agent_probes_the_linked_target(api: RegistryApi, monitoring: str) -> None:
    key = (await api.register("agent-1", monitoring=monitoring, card_url=CARD))["agent_key"]
    await crawl(api, "agent-1")
    assert await links(api) == [(TARGET, "linked")]
    answer = await api.ask("POST", "/api/v1/targets/agent-1/probe", key=key)
    assert (answer.status, answer.json()["target_id"]) == (202, TARGET)
    shown = await api.ask("GET", f"/api/v1/targets/{TARGET}", key=key)
    assert "recheck_at" in shown.json()
    # Within a minute, under either name.
    for name in ("agent-1", TARGET):
        assert (await api.ask("POST", f"/api/v1/targets/{name}/probe", key=key)).status == 429
    await api.register("agent-2", card_url="https://other.example/")
    other = await api.add_agent_key("agent-2")
    assert (await api.ask("GET", f"/api/v1/targets/{TARGET}", key=other)).status == 403
    assert (await api.ask("POST", f"/api/v1/targets/{TARGET}/probe", key=other)).status == 403


async def test_a_census_counts_a_url_once_linked_or_not(api: RegistryApi) -> None:
    await put(api, "list", "2", [CARD])
    await api.register("agent-1", card_url=CARD, monitoring="probe")
    await api.register("agent-2", card_url=CARD, monitoring="probe")
    failed = {"discovery": None, "transport": {"result": "timeout"}}
    own = {"agent_id": "agent-1", "observed_at": moment(api.clock.at_s).isoformat()}
    await api.report(own | failed)
    assert await census(api) == {None: 1}
    await crawl(api, url=CARD)
    assert await census(api) == {"ok": 1}
    await crawl(api, "agent-1", url=CARD)
    assert await census(api) == {"ok": 1}
    health = (await api.ask("GET", "/api/v1/census", key=Role.READER)).json()["health"]
    assert health == {"unknown": 1}


async def test_a_registered_card_counts_as_the_origin_that_a_directory_lists(api: RegistryApi) -> None:
    await crawl(api)
    await api.register("agent-1", card_url=CARD, monitoring="probe")
    own = {"agent_id": "agent-1", "observed_at": moment(api.clock.at_s).isoformat()}
    seen = {"discovery": {"result": "ok"}, "transport": {"result": "ok"}}
    await api.report(own | seen, memories=[{"card_url": CARD}])
    assert await census(api) == {"ok": 1}


@pytest.mark.both_databases
async def test_target_that_redirects_to_the_card_of_another_is_merged_with_it(api: RegistryApi) -> None:
    mirror = "https://mirror.example/"
    await put(api, "mirrors", "1", [mirror])
    await crawl(api)
    place = {"card_url": f"{mirror}card.json", "card_redirect": CARD}
    answer = await api.report(probe(api.clock, mirror), memories=[place])
    assert answer.status == 200, answer.body
    assert await census(api) == {"ok": 1}
    # Each directory counts what it lists.
    shown = (await api.ask("GET", "/api/v1/census", key=Role.READER)).json()["directories"]
    assert {(each["directory"], each["count"]) for each in shown} == {("list", 1), ("mirrors", 1)}
    # Two that lead to one another are not both left out.
    back = {"card_url": CARD, "card_redirect": f"{mirror}card.json"}
    await api.report(probe(api.clock), memories=[back])
    assert await census(api) == {"ok": 1}
    # Once the other one is gone, it counts itself.
    await put(api, "list", "2", ["https://third.example/"], allow_shrink=True)
    assert await census(api) == {"ok": 1, None: 1}


@pytest.mark.both_databases
async def test_the_prober_of_a_linked_target_is_sent_the_thresholds_of_its_agent(api: RegistryApi) -> None:
    shard = shard_of(host_of(ORIGIN))

    async def changes(after: int) -> dict[str, Any]:
        """Return the thresholds of each target that changed."""
        result = (await feed(api, shard, after))["targets"]
        return {target["subject_id"]: target.get("thresholds_s") for target in result}

    async def version() -> int:
        return int((await feed(api, shard))["version"])

    def thresholds(dead_after_s: int) -> dict[str, Any]:
        config = {
            "interval_seconds": 300,
            "unhealthy_after_seconds": 14_400,
            "dead_after_seconds": dead_after_s,
        }
        return {"heartbeat_config": config}

    await crawl(api)
    record = {"card_url": CARD, "monitoring": "probe"}
    await api.register("agent-1", **record, **thresholds(86_400))
    before = await version()
    await crawl(api, "agent-1")
    assert await links(api) == [(TARGET, "linked")]
    assert await changes(before) == {TARGET: [14_400, 86_400]}
    before = await version()
    await api.ask("PATCH", f"{AGENTS}/agent-1", thresholds(43_200), headers={"If-Match": "*"})
    assert await changes(before) == {TARGET: [14_400, 43_200]}
    before = await version()
    await api.register("agent-1", supersede=True, **record, **thresholds(28_800))
    assert (await changes(before))[TARGET] == [14_400, 28_800]
    await api.registry.link_checker.check_some()
    before = await version()
    # The card names no agent any more.
    await crawl(api)
    assert await links(api) == [(TARGET, "claimed")]
    assert await changes(before) == {TARGET: None, "agent-1": [14_400, 28_800]}


async def test_linked_target_passes_its_alive_time_to_the_agent(api: RegistryApi) -> None:
    await crawl(api)
    await api.register("agent-1", card_url=CARD, monitoring="probe")
    await crawl(api, "agent-1")
    api.clock.advance(300)
    await crawl(api, "agent-1")
    await crawl(api)
    result = (await feed(api, shard_of(host_of(ORIGIN))))["targets"]
    memories = {target["subject_id"]: target.get("memory", {}) for target in result}
    assert memories["agent-1"]["alive_at_s"] == api.clock.at_s


async def linked(api: RegistryApi) -> None:
    """Register an agent that is probed, link the target to it, and let it answer from an address."""
    where = {"network_class": "public_ipv4", "address": "192.0.2.1"}
    await api.register("agent-1", card_url=CARD, monitoring="probe")
    for _ in range(2):
        await crawl(api, "agent-1", **where)
    assert await links(api) == [(TARGET, "linked")]


async def test_lost_evidence_of_a_linked_agent_is_counted(api: RegistryApi, clock: WoundClock) -> None:
    await linked(api)
    await api.register("agent-2", card_url="https://two.example/card.json", monitoring="probe")
    two = probe(clock)
    del two["target_url"]
    await api.report({**two, "agent_id": "agent-2"})
    clock.advance(1_000)
    await api.sweep()
    assert (await api.ask("GET", "/api/v1/monitor")).json()["lost_evidence"]["agents"] == 2


@pytest.mark.both_databases
async def test_dead_linked_agent_leaves_no_network_class_expected_to_answer(
    api: RegistryApi, clock: WoundClock
) -> None:
    await linked(api)
    shard = shard_of(host_of(ORIGIN))

    async def state() -> tuple[bool, set[str]]:
        """Return whether its shard holds a living agent, and the classes that are expected to answer."""

        def read(transaction: Transaction) -> tuple[bool, set[str]]:
            return bool(liveness.results_due_s(transaction, [shard], 0, 1)), liveness.classes(transaction)

        return await api.database.read(read)

    assert await state() == (True, {"public_ipv4"})
    for _ in range(16):
        clock.advance(300)
        await crawl(api, "agent-1", discovery=None, transport={"result": "timeout"})
        await api.sweep()
    assert (await api.record("agent-1"))["status"] == "dead"
    assert await state() == (False, set())


async def test_an_outage_of_a_linked_agent_can_be_confirmed(api: RegistryApi) -> None:
    await linked(api)
    before = int((await feed(api, shard_of(host_of(ORIGIN))))["version"])
    for agent_id in ("agent-1", TARGET):
        answer = await api.ask("POST", "/api/v1/monitor/confirm", {"agent_id": agent_id})
        assert answer.status == 200, answer.body
        result = (await feed(api, shard_of(host_of(ORIGIN)), before))["targets"]
        assert [target["subject_id"] for target in result if "confirmed_at" in target] == [TARGET]
    unknown = await api.ask("POST", "/api/v1/monitor/confirm", {"agent_id": "nobody"})
    assert unknown.status == 404


BACKED_OFF = {"failures_in_row": 60, "silence_s": 18_000.0, "doublings": 11, "slowdowns": 2}


async def back_off(api: RegistryApi, subject: dict[str, str], **memory: Any) -> None:
    """Report a result of a target after which probers probe it less often."""
    seen = probe(api.clock)
    del seen["target_url"]
    facts = {"probed_at_s": api.clock.at_s, "card_url": CARD, "alive_at_s": 1e9, **BACKED_OFF, **memory}
    assert (await api.report({**seen, **subject}, memories=[facts])).status == 200


async def backed_off(api: RegistryApi) -> dict[str, bool]:
    """Return which of the probed targets probers would probe less often."""

    def memories(transaction: Transaction) -> dict[str, str]:
        numbers = {each: target_rows.present(transaction, [each]) for each in (TARGET, "agent-1")}
        return {
            each: probe_results.memories_of(transaction, found).get(found[0], "{}")
            for each, found in numbers.items()
            if found
        }

    stored = await api.database.read(memories)
    return {each: not BACKED_OFF.keys().isdisjoint(json.loads(memory)) for each, memory in stored.items()}


@pytest.mark.both_databases
async def test_back_off_ends_when_a_link_begins_and_ends(api: RegistryApi, clock: WoundClock) -> None:
    """The agent may be alive: without probes its death would be found days later."""
    await back_off(api, {"target_url": ORIGIN})
    assert await backed_off(api) == {TARGET: True}
    await api.register("agent-1", card_url=CARD, monitoring="probe")
    await back_off(api, {"agent_id": "agent-1"})
    assert await backed_off(api) == {TARGET: True, "agent-1": True}
    await back_off(api, {"target_url": ORIGIN}, link_registry=f"{PUBLIC_URL}/", link_agent_id="agent-1")
    await api.registry.link_checker.check_some()
    assert (await link_events(api))[-1][0] == "agent.linked"
    assert await backed_off(api) == {TARGET: False}
    # Results of probes that began before the link are ignored.
    clock.advance(86_400)
    await crawl(api, None)
    assert (await link_events(api))[-1][0] == "agent.unlinked"
    assert await backed_off(api) == {TARGET: False, "agent-1": False}


async def test_back_off_of_a_linked_target_ends_when_the_agent_gets_another_url(api: RegistryApi) -> None:
    """Then the registry counts no earlier failure."""
    await api.register("agent-1", card_url=CARD, monitoring="probe")
    await crawl(api, "agent-1")
    await back_off(api, {"target_url": ORIGIN})
    assert (await backed_off(api))[TARGET]
    record = await api.record("agent-1")
    etag = f'"{record["version"]}"'
    changed = await api.ask("PATCH", f"{AGENTS}/agent-1", {"card_url": ORIGIN}, headers={"If-Match": etag})
    assert changed.status == 200, changed.body
    assert not (await backed_off(api))[TARGET]


async def decisions(api: RegistryApi, agent_id: str) -> tuple[bool, str | None]:
    """Return whether an agent is in maintenance, and the status of its override."""
    record = await api.record(agent_id)
    return "maintenance_until" in record, record.get("override", {}).get("status")


@pytest.mark.both_databases
async def test_maintenance_and_override_continue_when_a_link_begins_and_ends(
    api: RegistryApi, clock: WoundClock
) -> None:
    await crawl(api)
    for name, body in (("maintenance", {}), ("override", {"status": "unhealthy"})):
        assert (
            await api.ask("PUT", f"{AGENTS}/{TARGET}/{name}", {**body, "seconds": 100_000, "reason": "moves"})
        ).status == 200
    await api.register("agent-1", card_url=CARD, monitoring="probe")
    await crawl(api, "agent-1")
    assert await links(api) == [(TARGET, "linked")]
    assert await decisions(api, "agent-1") == (True, "unhealthy")
    await api.sweep()
    assert (await api.record("agent-1"))["status"] == "unhealthy"
    for name in ("maintenance", "override"):
        assert (await api.ask("DELETE", f"{AGENTS}/{TARGET}/{name}")).status == 200
    assert await decisions(api, TARGET) == (False, None)
    clock.advance(86_400)
    await crawl(api, None)
    assert await links(api) != [(TARGET, "linked")]
    assert await decisions(api, "agent-1") == (True, "unhealthy")
    assert await decisions(api, TARGET) == (True, "unhealthy")


async def test_agent_keeps_its_own_decisions_when_it_is_linked(api: RegistryApi) -> None:
    await crawl(api)
    await api.register("agent-1", card_url=CARD, monitoring="probe")
    for each, seconds, status in ((TARGET, 100, "unhealthy"), ("agent-1", 200, "active")):
        body = {"seconds": seconds, "reason": "moves"}
        assert (await api.ask("PUT", f"{AGENTS}/{each}/maintenance", body)).status == 200
        assert (await api.ask("PUT", f"{AGENTS}/{each}/override", {**body, "status": status})).status == 200
    before = await api.record("agent-1")
    await crawl(api, "agent-1")
    assert await links(api) == [(TARGET, "linked")]
    after = await api.record("agent-1")
    assert [after[name] for name in ("maintenance_until", "override")] == [
        before[name] for name in ("maintenance_until", "override")
    ]
