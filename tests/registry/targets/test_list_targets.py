from typing import Any
from urllib.parse import quote

import pytest
from tests.support.databases import WoundClock
from tests.support.directory_api import put
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.domain.models.base import moment
from lifesign.domain.observation.result_sums import Layer
from lifesign.domain.observation.results import LayerResult, ResultClass
from lifesign.domain.observation.summary_line import probe_summary
from lifesign.domain.targets.target import host_of, target_id
from lifesign.registry.request_handling.cursors import cursor_at
from lifesign.registry.targets import list_targets
from lifesign.storage.targets import target_rows

PATH = "/api/v1/targets"
URLS = [f"https://agent-{number}.example/" for number in range(5)]
SAME_HOST = "https://agent-0.example/other"


async def report(api: RegistryApi, clock: WoundClock, url: str, **members: Any) -> None:
    clock.advance(1)
    seen = {"target_url": url, "observed_at": moment(clock.at_s).isoformat(), **members}
    memory = members.pop("memory", {})
    seen.pop("memory", None)
    answer = await api.report(seen, memories=[memory])
    assert answer.status == 200, answer.body


def described(**layers: str) -> str:
    """Return the summary of a probe with these results."""
    return probe_summary([
        (Layer(name), LayerResult(result=ResultClass(result), reason="closed" * (result == "refused")))
        for name, result in layers.items()
    ])  # fmt: skip


CARD_AND_INTERFACE = described(discovery="ok", transport="ok")


async def listed(api: RegistryApi, query: str = "", key: str | Role = Role.READER) -> list[str]:
    answer = await api.ask("GET", f"{PATH}?{query}", key=key)
    assert answer.status == 200, answer.body
    assert answer.json()["total"] >= len(answer.json()["targets"])
    return sorted(target["url"] for target in answer.json()["targets"])


@pytest.fixture
async def directory(api: RegistryApi, clock: WoundClock) -> None:
    """Two directories, one target that lives, one that refuses, one that left, and two of unknown state."""
    await put(api, "dir", "one", URLS)
    await put(api, "second", "one", [SAME_HOST])
    await report(api, clock, URLS[0], discovery={"result": "ok"}, transport={"result": "ok"})
    await report(api, clock, URLS[1], discovery={"result": "refused"})
    kept_out = {"result": "not_measured", "reason": "robots.txt"}
    await report(api, clock, URLS[2], discovery=kept_out)
    await put(api, "dir", "two", URLS[:4])


@pytest.mark.both_databases
@pytest.mark.usefixtures("directory")
async def test_old_result_has_a_reason_and_may_be_left_out(api: RegistryApi, clock: WoundClock) -> None:
    async def reasons() -> dict[str, str | None]:
        answer = await api.ask("GET", f"{PATH}?limit=100", key=Role.READER)
        return {target["url"]: target.get("unknown_reason") for target in answer.json()["targets"]}

    assert (await reasons())[URLS[0]] is None
    assert await listed(api, "max_evidence_age=60") == URLS[:2]
    clock.advance(3_000)
    assert {(await reasons())[url] for url in URLS[:2]} == {"no_prober"}
    assert await listed(api, "max_evidence_age=60") == []
    assert await listed(api, "max_evidence_age=3600") == URLS[:2]
    assert await listed(api, "result=ok") == [URLS[0]]
    assert await listed(api, "result=ok&old_evidence=false") == []
    assert await listed(api, "result=gated&old_evidence=true") == URLS[:2]
    assert await listed(api, "old_evidence=true") == URLS[:2]
    everything = sorted([*URLS[:4], SAME_HOST])
    assert await listed(api, "old_evidence=false") == sorted(set(everything) - set(URLS[:2]))
    assert await listed(api, "sort=host&old_evidence=true&never_probed=true") == [
        url for url in everything if url != URLS[2]
    ]
    answer = await api.ask("GET", f"{PATH}?max_evidence_age=0", key=Role.READER)
    assert answer.status == 422


FILTERS = {
    "": [*URLS[:4], SAME_HOST],
    "result=ok": URLS[:1],
    "result=ok,refused": URLS[:2],
    "result=timeout": [],
    "never_probed=true": [URLS[3], SAME_HOST],
    "never_probed=true&result=refused": [URLS[1], URLS[3], SAME_HOST],
    "result=not_measured": URLS[2:3],
    "directory=dir": URLS[:4],
    "directory=second": [SAME_HOST],
    "directory=dir&result=refused": URLS[1:2],
    "host=AGENT-0.example": [URLS[0], SAME_HOST],
    "host=agent-9.example": [],
    "include_gone=true": [*URLS, SAME_HOST],
    "layer_result=refused": URLS[1:2],
    "layer_result=refused,timeout,ok": URLS[:2],
    "layer_result=ok&result=refused": [],
    "layer_result=ok&directory=second": [],
    "layer_result=timeout": [],
}


@pytest.mark.both_databases
@pytest.mark.usefixtures("directory")
async def test_targets_are_filtered_by_their_last_result(api: RegistryApi) -> None:
    found = {query: await listed(api, query) for query in FILTERS}
    assert found == {query: sorted(urls) for query, urls in FILTERS.items()}


@pytest.mark.both_databases
async def test_targets_with_failed_assertions_are_counted_and_found(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "dir", "one", URLS)
    check = {"of": "card", "check": "status", "expected": "200", "actual": "500"}
    card = {"result": "ok"}
    for url, outcome in zip(URLS, ("assertion_failed", "ok", "not_measured"), strict=False):
        await report(api, clock, url, discovery=card, assertions=[check | {"result": outcome}])
    assert await listed(api, "failed_assertions=true") == URLS[:1]
    shown = (await api.ask("GET", PATH, key=Role.READER)).json()["targets"]
    counts = {each["url"]: each.get("failed_assertions") for each in shown}
    assert {url: count for url, count in counts.items() if count is not None} == {URLS[0]: 1}


async def test_targets_have_the_health_that_their_last_document_reports(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "dir", "one", URLS)
    layers = {"discovery": {"result": "ok"}, "readiness": {"result": "ok"}}
    document = {"status": "unhealthy", "timestamp": moment(clock.at_s).isoformat()}
    await report(api, clock, URLS[0], **layers, document=document)
    stale = {"result": "stale_document"}
    old = document | {"timestamp": moment(clock.at_s - 86_400).isoformat(), "is_stale": True}
    await report(api, clock, URLS[1], **(layers | {"readiness": stale}), document=old)
    await report(api, clock, URLS[2], discovery={"result": "ok"})
    shown = (await api.ask("GET", PATH, key=Role.READER)).json()["targets"]
    found = {each["url"]: each["reported_health"] for each in shown if "reported_health" in each}
    assert found == {URLS[0]: "unhealthy"}


@pytest.mark.both_databases
async def test_a_target_with_a_public_card_is_found_by_the_fault_of_its_credential(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "dir", "one", URLS)
    layers = {"discovery": {"result": "ok"}, "transport": {"result": "credentials_rejected"}}
    await report(api, clock, URLS[0], **layers)
    await report(api, clock, URLS[1], **(layers | {"message": {"result": "token_error"}}))
    await report(api, clock, URLS[2], discovery={"result": "ok"}, transport={"result": "gated"})
    assert await listed(api, "result=ok") == URLS[:3]
    assert await listed(api, "result=credentials_rejected") == []
    assert await listed(api, "layer_result=credentials_rejected") == URLS[:2]
    assert await listed(api, "layer_result=token_error,gated&sort=host") == URLS[1:3]
    # An underscore stands for itself.
    assert (await api.ask("GET", f"{PATH}?layer_result=credentialsXrejected", key=Role.READER)).status == 422
    await report(api, clock, URLS[0], discovery={"result": "ok"}, transport={"result": "ok"})
    assert await listed(api, "layer_result=credentials_rejected") == URLS[1:2]
    # A path of an assertion has the fault too.
    rejected = {"result": "credentials_rejected"}
    await report(api, clock, URLS[0], discovery={"result": "ok"}, paths={"/status": rejected})
    assert await listed(api, "layer_result=credentials_rejected") == URLS[:2]


@pytest.mark.parametrize("host", ["bücher.example", "BÜCHER.example", "xn--bcher-kva.example"])
async def test_international_host_is_found_in_its_unicode_form(api: RegistryApi, host: str) -> None:
    await put(api, "dir", "one", ["https://xn--bcher-kva.example/", *URLS])
    assert await listed(api, f"host={quote(host)}") == ["https://xn--bcher-kva.example/"]


@pytest.mark.usefixtures("directory")
async def test_all_pages_together_are_the_list(api: RegistryApi) -> None:
    found: list[str] = []
    cursor = ""
    while True:
        page = (await api.ask("GET", f"{PATH}?limit=2{cursor}", key=Role.READER)).json()
        assert page["total"] == 5
        found += [target["url"] for target in page["targets"]]
        if "cursor" not in page:
            break
        cursor = f"&cursor={page['cursor']}"
    assert sorted(found) == sorted([*URLS[:4], SAME_HOST])


ORDERED = [
    "https://a.example:8443/",
    "http://a.example/",
    "https://b.example/1",
    "https://b.example/2",
    "https://b.example/3",
    "https://c.example/",
]
ORDERED.sort(key=lambda url: (host_of(url), url))


async def pages_by_host(api: RegistryApi, query: str = "", size: int = 2) -> list[list[str]]:
    found, cursor = [], ""
    while True:
        answer = await api.ask("GET", f"{PATH}?sort=host&limit={size}{query}{cursor}", key=Role.READER)
        assert answer.status == 200, answer.body
        page = answer.json()
        found.append([target["url"] for target in page["targets"]])
        if "cursor" not in page:
            return found
        cursor = f"&cursor={page['cursor']}"


@pytest.mark.parametrize("common", [0, 20_000])
async def test_targets_are_found_by_host_and_url_in_any_number(
    api: RegistryApi, clock: WoundClock, monkeypatch: pytest.MonkeyPatch, common: int
) -> None:
    monkeypatch.setattr(list_targets, "COMMON", common)
    await put(api, "dir", "one", ORDERED[::-1])
    await put(api, "second", "one", ORDERED[3:1:-1])
    for url in ORDERED[1:4]:
        await report(api, clock, url, discovery={"result": "refused"})
    assert await pages_by_host(api) == [ORDERED[:2], ORDERED[2:4], ORDERED[4:]]
    assert await pages_by_host(api, "&directory=second", 1) == [ORDERED[2:3], ORDERED[3:4]]
    assert await pages_by_host(api, "&result=refused") == [ORDERED[1:3], ORDERED[3:4]]
    assert await pages_by_host(api, "&never_probed=true") == [ORDERED[:1] + ORDERED[4:5], ORDERED[5:]]
    assert await pages_by_host(api, "&host=b.example") == [ORDERED[2:4], ORDERED[4:5]]


@pytest.mark.both_databases
async def test_page_continues_although_its_first_target_was_deleted(api: RegistryApi) -> None:
    await put(api, "dir", "one", ORDERED)
    first = (await api.ask("GET", f"{PATH}?sort=host&limit=4", key=Role.READER)).json()
    forgotten = first["targets"][-1]["target_id"]
    await api.database.write(lambda transaction: target_rows.remove(transaction, forgotten))
    rest = (await api.ask("GET", f"{PATH}?sort=host&cursor={first['cursor']}", key=Role.READER)).json()
    # Nothing is missed: all targets of its host are delivered again.
    assert [target["url"] for target in rest["targets"]] == [ORDERED[2], *ORDERED[4:]]
    # A cursor of one order is invalid in the other, and so is an invented one.
    made_up = cursor_at("targets_by_host", 1, 1, "")
    for query in (f"cursor={first['cursor']}", f"sort=host&cursor={made_up}"):
        answer = await api.ask("GET", f"{PATH}?{query}", key=Role.READER)
        assert (answer.status, answer.json()["error"]["details"]["faults"][0]["name"]) == (
            422,
            "invalid_cursor",
        )


@pytest.mark.usefixtures("directory")
async def test_last_observation_is_described_in_one_line(api: RegistryApi, clock: WoundClock) -> None:
    closed = {"result": "refused", "reason": "closed"}
    await report(api, clock, URLS[1], discovery=closed)
    await report(api, clock, SAME_HOST, discovery={"result": "ok"}, transport=closed)
    found = (await api.ask("GET", PATH, key=Role.READER)).json()["targets"]
    assert {target["url"]: target.get("why") for target in found} == {
        URLS[0]: CARD_AND_INTERFACE,
        URLS[1]: "closed",
        URLS[2]: "robots.txt",
        URLS[3]: None,
        SAME_HOST: described(discovery="ok", transport="refused"),
    }


@pytest.mark.usefixtures("directory")
async def test_card_that_was_not_requested_again_is_kept(api: RegistryApi, clock: WoundClock) -> None:
    async def why() -> str:
        found = (await api.ask("GET", f"{PATH}?host=agent-0.example", key=Role.READER)).json()["targets"]
        return next(str(target["why"]) for target in found if target["url"] == URLS[0])

    await report(api, clock, URLS[0], transport={"result": "ok"})
    assert await why() == CARD_AND_INTERFACE
    # A target without a liveness signal has the reason of its last probe.
    await report(api, clock, URLS[0], transport={"result": "refused", "reason": "closed"})
    assert await why() == "closed"
    await report(api, clock, URLS[0], discovery={"result": "not_an_agent"}, transport={"result": "ok"})
    assert await why() == described(transport="ok")


@pytest.mark.usefixtures("directory")
async def test_interface_that_is_no_longer_probed_is_no_liveness_signal(
    api: RegistryApi, clock: WoundClock
) -> None:
    async def why() -> str:
        found = (await api.ask("GET", f"{PATH}?host=agent-0.example", key=Role.READER)).json()["targets"]
        return next(str(target["why"]) for target in found if target["url"] == URLS[0])

    document = {"status": "healthy", "timestamp": moment(clock.at_s).isoformat()}
    left: dict[str, Any] = {"readiness": {"result": "ok"}, "document": document}
    assert await why() == CARD_AND_INTERFACE
    await report(api, clock, URLS[0], **left)
    assert await why() == described(discovery="ok", readiness="ok")
    # The application is gone, and a file that it wrote is still served.
    await report(api, clock, URLS[0], discovery={"result": "not_an_agent"}, **left)
    assert await why() == "a health document"
    census = (await api.ask("GET", "/api/v1/census", key=Role.READER)).json()
    assert {"discovery": "not_an_agent", "readiness": "ok", "count": 1} in census["shown"]


@pytest.mark.usefixtures("directory")
async def test_unmeasured_target_keeps_the_time_of_its_last_probe(
    api: RegistryApi, clock: WoundClock
) -> None:
    async def shown() -> dict[str, Any]:
        found = (await api.ask("GET", f"{PATH}?host=agent-0.example", key=Role.READER)).json()["targets"]
        return next(dict(target) for target in found if target["url"] == URLS[0])

    await report(api, clock, URLS[0], discovery={"result": "http_error", "reason": "HTTP 503"})
    before = await shown()
    assert (before["result"], before["observed_at"]) == (
        "http_error",
        moment(clock.at_s).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    )
    await report(api, clock, URLS[0], discovery={"result": "not_measured", "reason": "it asked us to wait"})
    assert await shown() == before
    whole = (await api.ask("GET", f"{PATH}/{before['target_id']}", key=Role.READER)).json()
    assert whole["observed_at"] == before["observed_at"] < whole["probed_at"]


@pytest.mark.usefixtures("directory")
async def test_total_is_counted_with_the_first_page(api: RegistryApi, clock: WoundClock) -> None:
    first = (await api.ask("GET", f"{PATH}?limit=2", key=Role.READER)).json()
    await put(api, "dir", "three", [*URLS, "https://agent-9.example/"])
    later = (await api.ask("GET", f"{PATH}?limit=2&cursor={first['cursor']}", key=Role.READER)).json()
    assert (first["total"], later["total"]) == (5, 5)


async def test_target_record_contains_all_known_facts(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "b", "one", URLS[:1])
    await put(api, "a", "one", URLS[:1])
    began_s = clock.at_s
    evidence = "ab" * 32
    await report(api, clock, URLS[0], discovery={"result": "refused", "reason": "closed"})
    await report(
        api,
        clock,
        URLS[0],
        discovery={"result": "ok", "latency_ms": 12.5, "evidence": evidence},
        transport={"result": "gated", "status_code": 401},
        readiness={"result": "ok"},
        document={"status": "degraded", "timestamp": moment(clock.at_s).isoformat()},
        reported_agent_id="itself",
        certificate_expires_at="2027-01-01T00:00:00Z",
        memory={"probed_at_s": 7.5, "card_url": URLS[0], "protocol_version": "1.0"},
    )
    answer = await api.ask("GET", f"{PATH}/{target_id(URLS[0])}", key=Role.READER)
    shown = answer.json()
    assert shown["changes"] == [
        {"at": shown["result_since"], "layer": "discovery", "previous": "refused", "result": "ok",
         "evidence": evidence},
        {"at": shown["result_since"], "layer": "overall", "previous": "refused", "result": "ok",
         "evidence": evidence},
    ]  # fmt: skip
    assert moment(began_s + 2).isoformat().startswith(shown["result_since"][:19])
    assert shown["result"] == "ok"
    assert shown["directories"] == ["a", "b"]
    assert (shown["agent_status"], shown["health_status"]) == ("active", "degraded")
    memory = {"probed_at_s": 7.5, "card_url": URLS[0], "protocol_version": "1.0"}
    assert memory.items() <= shown["memory"].items()
    assert shown["observed"]["transport"] == {"result": "gated", "reason": "", "status_code": 401}
    assert shown["observed"]["observed_at"] == shown["observed_at"]
    assert shown["observed"]["document"]["status"] == "degraded"
    assert shown["observed"]["certificate_expires_at"] == "2027-01-01T00:00:00.000Z"
    assert (shown["is_registered"], "gone_at" in shown, "recheck_at" in shown) == (False, False, False)


async def test_target_record_shows_health_by_old_evidence_as_the_agent_does(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "dir", "one", URLS[:1])
    document = {"status": "healthy", "timestamp": moment(clock.at_s).isoformat()}
    await report(
        api, clock, URLS[0], discovery={"result": "ok"}, readiness={"result": "ok"}, document=document
    )
    path = f"{PATH}/{target_id(URLS[0])}"
    fresh = (await api.ask("GET", path, key=Role.READER)).json()
    assert (fresh["health_status"], "health_unknown_reason" in fresh) == ("healthy", False)
    clock.advance(86_400)
    old = (await api.ask("GET", path, key=Role.READER)).json()
    agent = (await api.ask("GET", f"/api/v1/agents/{target_id(URLS[0])}", key=Role.READER)).json()
    assert (old["health_status"], old["health_unknown_reason"]) == ("unknown", "no_prober")
    assert (agent["health"], agent["unknown_reason"]) == ("unknown", "no_prober")


@pytest.mark.usefixtures("directory")
async def test_disallowed_target_has_the_reason(api: RegistryApi) -> None:
    shown = (await api.ask("GET", f"{PATH}?host=agent-2.example", key=Role.READER)).json()["targets"][0]
    assert (shown["result"], shown["why"]) == ("not_measured", "robots.txt")
    assert "observed_at" in shown


@pytest.mark.usefixtures("directory")
async def test_unmeasured_target_shows_no_result(api: RegistryApi) -> None:
    shown = (await api.ask("GET", f"{PATH}/{target_id(URLS[3])}", key=Role.READER)).json()
    assert {"result", "result_since", "observed_at", "observed", "memory", "agent_status"} & set(
        shown
    ) == set()
    assert shown["changes"] == []
    gone = (await api.ask("GET", f"{PATH}/{target_id(URLS[4])}", key=Role.READER)).json()
    assert (gone["gone_reason"], "gone_at" in gone, gone["directories"]) == ("left", True, [])


@pytest.mark.both_databases
async def test_agents_key_lists_only_itself(api: RegistryApi) -> None:
    await put(api, "dir", "one", URLS)
    key = (await api.register("one", monitoring="probe", card_url=SAME_HOST))["agent_key"]
    assert await listed(api, key=key) == [SAME_HOST]
    assert (await api.ask("GET", f"{PATH}/one", key=key)).status == 200
    assert (await api.ask("GET", f"{PATH}/{target_id(URLS[0])}", key=key)).status == 403


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("result=fine", 422),
        ("limit=0", 422),
        ("limit=1001", 422),
        ("cursor=x", 422),
        ("host=", 422),
        (f"host={quote('bü cher.example')}", 422),
        ("directory=no%20name", 422),
        ("directory=nowhere", 404),
        ("results=ok", 422),
    ],
)
async def test_invalid_query_is_refused(api: RegistryApi, query: str, status: int) -> None:
    assert (await api.ask("GET", f"{PATH}?{query}")).status == status


async def test_unknown_target_is_not_found(api: RegistryApi) -> None:
    answer = await api.ask("GET", f"{PATH}/tgt_0", key=Role.READER)
    assert (answer.status, answer.json()["error"]["code"]) == (404, "target_not_found")
