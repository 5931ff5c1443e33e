from typing import Any

import pytest
from tests.support.databases import WoundClock
from tests.support.directory_api import put
from tests.support.registry_api import RegistryApi
from tests.support.sql_statements import recorded_statements

from lifesign.domain.access.permissions import Role
from lifesign.domain.models.base import moment
from lifesign.domain.observation.result_sums import bucket_of

PATH = "/api/v1/census"
URLS = [f"https://agent-{number}.example/" for number in range(5)]


async def report(
    api: RegistryApi, clock: WoundClock, url: str, memory: dict[str, Any], **layers: Any
) -> None:
    clock.advance(1)
    seen = {"target_url": url, "observed_at": moment(clock.at_s).isoformat(), **layers}
    answer = await api.report(seen, memories=[memory])
    assert answer.status == 200, answer.body


@pytest.fixture
async def measured(api: RegistryApi, clock: WoundClock) -> None:
    """Two directories: one target that lives, one that refuses, one that left, two of unknown state."""
    await put(api, "dir", "one", URLS)
    await put(api, "second", "one", URLS[:2])
    alive = {"result": "ok", "latency_ms": 250.0}
    await report(api, clock, URLS[0], {"protocol_version": "1.0"}, discovery=alive, transport=alive)
    await report(api, clock, URLS[1], {"protocol_version": "0.3"}, discovery={"result": "refused"})
    await put(api, "dir", "two", URLS[:4])


async def census(api: RegistryApi, query: str = "") -> dict[str, Any]:
    answer = await api.ask("GET", f"{PATH}{query}", key=Role.READER)
    assert answer.status == 200, answer.body
    return dict(answer.json())


def by_result(rows: list[dict[str, Any]]) -> dict[str | None, int]:
    return {row.get("result"): row["count"] for row in rows}


@pytest.mark.usefixtures("measured")
async def test_each_target_counts_once_and_never_probed_is_no_result(api: RegistryApi) -> None:
    counts = await census(api)
    assert by_result(counts["targets"]) == {"ok": 1, "refused": 1, None: 2}
    assert by_result([row for row in counts["directories"] if row["directory"] == "second"]) == {
        "ok": 1,
        "refused": 1,
    }
    assert counts["health"] == {"unknown": 1}
    assert counts["gone"] == {"left": 1}
    assert {row["kind"] for row in counts["kinds"]} == {"a2a"}
    assert by_result(counts["kinds"]) == {"ok": 1, "refused": 1, None: 2}
    assert counts["shown"] == [{"discovery": "ok", "transport": "ok", "count": 1}]
    bucket = bucket_of(250.0)
    assert [tuple(row.values()) for row in counts["probes"]] == [
        ("discovery", "ok", bucket, 1),
        ("discovery", "refused", -1, 1),
        ("overall", "ok", -1, 1),
        ("overall", "refused", -1, 1),
        ("transport", "ok", bucket, 1),
    ]


@pytest.mark.usefixtures("measured")
async def test_probes_are_counted_over_the_requested_period(api: RegistryApi, clock: WoundClock) -> None:
    now_s = clock.at_s
    clock.advance(90_000)
    assert (await census(api))["probes"] == []
    since, until = (moment(at_s).isoformat()[:19] + "Z" for at_s in (now_s, now_s + 60))
    assert len((await census(api, f"?since={since}&until={until}"))["probes"]) == 5


@pytest.mark.usefixtures("measured")
async def test_hosts_come_in_pages(api: RegistryApi) -> None:
    hosts: list[dict[str, Any]] = []
    cursor, pages = "", 0
    while True:
        page = (await api.ask("GET", f"{PATH}/hosts{cursor}", key=Role.READER)).json()
        hosts, pages = hosts + page["hosts"], pages + 1
        if "cursor" not in page:
            break
        cursor = f"?cursor={page['cursor']}"
    assert pages == 16
    assert sorted(hosts, key=lambda row: str(row["host"])) == [
        {"host": "agent-0.example", "result": "ok", "protocol_version": "1.0", "count": 1},
        {"host": "agent-1.example", "result": "refused", "count": 1},
        {"host": "agent-2.example", "count": 1},
        {"host": "agent-3.example", "count": 1},
    ]


async def put_run(api: RegistryApi, run_id: str, **members: object) -> dict[str, Any]:
    answer = await api.ask("PUT", f"{PATH}/runs/{run_id}", {"name": "weekly", **members}, key=Role.PROBER)
    assert answer.status == 200, answer.body
    return dict(answer.json())


@pytest.mark.usefixtures("measured")
async def test_census_counts_of_a_run_are_fixed_at_its_end(api: RegistryApi, clock: WoundClock) -> None:
    clock.advance(1)
    begun = await put_run(api, "one")
    assert (begun["counts"], "ended_at" in begun) == ([], False)
    clock.advance(60)
    assert await put_run(api, "one") == begun
    await report(api, clock, URLS[0], {}, discovery={"result": "ok"})
    for url in URLS[1:3]:
        await report(api, clock, url, {}, discovery={"result": "not_measured"})
        # A target is left: the pass of its probers is not ended.
        assert await put_run(api, "one", is_over=True) == begun
    await report(api, clock, URLS[3], {}, discovery={"result": "timeout"})
    ended = await put_run(api, "one", is_over=True)
    # The former state of an unmeasured target stays, and is no result of this run.
    assert by_result(ended["counts"]) == {"ok": 1, "not_measured": 2, "timeout": 1}
    assert by_result((await census(api))["targets"]) == {
        "ok": 1,
        "refused": 1,
        "timeout": 1,
        "not_measured": 1,
    }
    await report(api, clock, URLS[2], {}, discovery={"result": "timeout"})
    assert await put_run(api, "one", is_over=True) == ended
    await put_run(api, "two", name="daily")
    assert [run["run_id"] for run in (await census(api))["runs"]] == ["two", "one"]
    assert (await census(api, "?name=weekly"))["runs"] == [ended]


@pytest.mark.both_databases
@pytest.mark.usefixtures("measured")
async def test_counting_the_targets_of_a_run_blocks_no_write(
    api: RegistryApi, clock: WoundClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_run(api, "one")
    for url in URLS[:4]:
        await report(api, clock, url, {}, discovery={"result": "ok"})
    statements = recorded_statements(monkeypatch, api.database, "write")
    assert (await put_run(api, "one", is_over=True))["counts"]
    assert any("UPDATE census_runs" in statement for statement in statements)
    assert not [statement for statement in statements if "FROM targets" in statement]


async def test_run_without_targets_ends_at_once(api: RegistryApi) -> None:
    ended = await put_run(api, "one", is_over=True)
    assert (ended["counts"], "ended_at" in ended) == ([], True)


@pytest.mark.both_databases
@pytest.mark.usefixtures("measured")
async def test_each_run_counts_only_its_own_probes(api: RegistryApi, clock: WoundClock) -> None:
    begun = await put_run(api, "one")
    for url in URLS[:4]:
        await report(api, clock, url, {}, discovery={"result": "timeout"})
    ended = await put_run(api, "one", is_over=True)
    await report(api, clock, URLS[2], {}, discovery={"result": "timeout"})
    counts = await census(api, "?run=one")
    assert [tuple(row.values()) for row in counts["probes"]] == [
        ("discovery", "timeout", -1, 4),
        ("overall", "timeout", -1, 4),
    ]
    assert (counts["since"], counts["until"]) == (begun["began_at"], ended["ended_at"])
    assert len(counts["runs"]) == 1
    refused = await api.ask("GET", f"{PATH}?run=two", key=Role.READER)
    assert (refused.status, "/run" in refused.body.decode()) == (422, True)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "?since=yesterday", None),
        ("GET", "?until=", None),
        ("GET", "?run=a%20b", None),
        ("GET", "/hosts?cursor=x", None),
        ("PUT", "/runs/a b", {"name": "x"}),
        ("PUT", "/runs/a", {"name": ""}),
        ("PUT", "/runs/a", {}),
    ],
)
async def test_invalid_census_query_is_refused(
    api: RegistryApi, method: str, path: str, body: object
) -> None:
    assert (await api.ask(method, f"{PATH}{path}", body)).status == 422


async def test_key_without_permission_is_refused(api: RegistryApi) -> None:
    key = (await api.register("one"))["agent_key"]
    for path in ("", "/hosts"):
        assert (await api.ask("GET", f"{PATH}{path}", key=key)).status == 403
    assert (await api.ask("PUT", f"{PATH}/runs/a", {"name": "x"}, key=Role.READER)).status == 403


@pytest.mark.usefixtures("measured")
async def test_old_evidence_counts_as_not_measured_with_its_reason(
    api: RegistryApi, clock: WoundClock
) -> None:
    fresh = await census(api)
    assert fresh["old"] == {}
    assert fresh["evidence_at"] == moment(clock.at_s).isoformat(timespec="milliseconds").replace(
        "+00:00", "Z"
    )
    clock.advance(1_000)
    old = await census(api)
    assert by_result(old["targets"]) == {"not_measured": 2, None: 2}
    assert old["old"] == {"no_prober": 2}
    assert old["evidence_at"] == fresh["evidence_at"]
    assert {row.get("result") for row in old["directories"]} == {"not_measured", None}
    assert old["shown"] == []
    assert await host_results(api) == {"not_measured", None}


@pytest.mark.both_databases
@pytest.mark.usefixtures("measured")
async def test_census_of_a_pass_is_as_old_as_its_pass(api: RegistryApi, clock: WoundClock) -> None:
    run = {"name": "census", "is_over": True}
    await api.ask("PUT", f"{PATH}/runs/one", run, key=Role.PROBER)
    clock.advance(100_000)
    assert by_result((await census(api, "?run=one"))["targets"]) == {"ok": 1, "refused": 1, None: 2}
    assert (await census(api, "?run=one"))["old"] == {}
    assert await host_results(api, "run=one&") == {"ok", "refused", None}
    answer = await api.ask("GET", f"{PATH}/hosts?run=two", key=Role.READER)
    assert answer.status == 422


async def host_results(api: RegistryApi, query: str = "") -> set[str | None]:
    """Return the results on all pages of hosts."""
    found: set[str | None] = set()
    page = await census(api, f"/hosts?{query}")
    while True:
        found |= {row.get("result") for row in page["hosts"]}
        if "cursor" not in page:
            return found
        page = await census(api, f"/hosts?{query}cursor={page['cursor']}")
