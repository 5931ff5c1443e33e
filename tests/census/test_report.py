import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tests.support.census_facts import DAY_S, MADE_AT_S, facts

from lifesign.census import report as module
from lifesign.census.document import Census
from lifesign.census.report import (
    ADDRESSES,
    UNNAMED,
    CensusFacts,
    HostCount,
    RunFacts,
    compute_census,
    platform_of,
)
from lifesign.census.result_groups import GROUPS, Group
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.observation.results import INCONCLUSIVE, ResultClass
from lifesign.domain.targets.target import TargetKind

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "census.schema.json").read_text())

HOSTS = st.builds(
    HostCount,
    st.sampled_from(["a.example.org", "b.example.org", "c.example.net", "192.0.2.7", "localhost"]),
    st.sampled_from([None, *ResultClass]),
    st.sampled_from([None, "0.3", "1.0"]),
    st.integers(0, 1000),
)


def test_each_result_class_belongs_to_one_group() -> None:
    assert set(GROUPS) == {None, *ResultClass}
    assert {result for result, group in GROUPS.items() if group is Group.ALIVE} == {
        "ok", "gated", "credentials_rejected", "token_error",
    }  # fmt: skip
    unknown = {result for result, group in GROUPS.items() if group is Group.UNKNOWN}
    assert unknown == INCONCLUSIVE | {ResultClass.STALE_DOCUMENT}
    assert GROUPS[None] is Group.NEVER_PROBED


def test_each_group_is_counted_separately() -> None:
    census = compute_census(facts())
    assert census.listed == 100
    groups = census.groups
    assert (groups.alive, groups.not_alive, groups.unknown, groups.never_probed) == (5, 76, 5, 14)
    assert census.alive_ratio == 5 / 81


def test_unmeasured_target_lowers_no_ratio() -> None:
    before = compute_census(facts(hosts=[HostCount("a.example", ResultClass.OK, None, 1)]))
    after = compute_census(
        facts(
            hosts=[
                HostCount("a.example", ResultClass.OK, None, 1),
                HostCount("a.example", None, None, 99),
                HostCount("a.example", ResultClass.NOT_MEASURED, None, 9),
            ]
        )
    )
    assert before.alive_ratio == after.alive_ratio == 1
    assert [row.result for row in after.results] == [ResultClass.NOT_MEASURED, ResultClass.OK]


def test_ratio_without_results_is_absent() -> None:
    census = compute_census(facts(hosts=[HostCount("a.example", None, None, 200)], runs=()))
    assert census.alive_ratio is None
    assert census.results == ()
    assert census.platforms[0].alive_ratio is None


def test_an_empty_directory_has_an_empty_census() -> None:
    census = compute_census(CensusFacts(name="none", made_at_s=MADE_AT_S, hosts=[]))
    assert (census.listed, census.alive_ratio, census.platforms, census.since) == (0, None, (), None)


@pytest.mark.parametrize(
    ("host", "platform"),
    [
        ("agent.example.com", "example.com"),
        ("example.com", "example.com"),
        ("a.b.example.co.uk", "example.co.uk"),
        # A platform's customers are not platforms, although some lists call these suffixes public.
        ("alice.vercel.app", "vercel.app"),
        ("bob.github.io", "github.io"),
        ("localhost", "localhost"),
        ("co.uk", "co.uk"),
        ("a.fleet.test", "fleet.test"),
        ("192.0.2.7", ADDRESSES),
        ("2001:db8::1", ADDRESSES),
        ("1.2.3.400", "1.2.3.400"),
        ("xn--mnchen-3ya.de", "xn--mnchen-3ya.de"),
    ],
)
def test_targets_are_grouped_by_registrable_domain(host: str, platform: str) -> None:
    assert platform_of(host) == platform


def test_targets_are_counted_by_kind_and_servers_have_no_generation() -> None:
    kinds = [
        (TargetKind.MCP, ResultClass.OK, 1),
        (TargetKind.A2A, ResultClass.OK, 3),
        (TargetKind.A2A, ResultClass.REFUSED, 1),
    ]
    census = compute_census(facts(kinds=kinds))
    assert [(part.name, part.groups.alive, part.alive_ratio) for part in census.kinds] == [
        ("a2a", 3, 0.75),
        ("mcp", 1, 1.0),
    ]
    unnamed = [
        next((row.count for row in each.generations if row.name == UNNAMED), 0)
        for each in (compute_census(facts()), census)
    ]
    assert unnamed == [1, 0]


def test_platforms_are_listed_by_number_of_targets() -> None:
    census = compute_census(facts())
    assert [part.name for part in census.platforms] == [
        "example.co.uk",
        "vercel.app",
        "example.org",
        ADDRESSES,
    ]
    vercel = census.platforms[1]
    assert (vercel.groups.alive, vercel.groups.not_alive, vercel.alive_ratio) == (4, 16, 0.2)


def test_platforms_beyond_the_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PLATFORMS", 1)
    census = compute_census(facts())
    assert [part.name for part in census.platforms] == ["example.co.uk"]
    others = census.other_platforms
    assert others is not None
    assert (others.platforms, others.groups.listed) == (3, 39)
    # Of the others, only vercel.app was ever measured.
    assert (others.lowest_alive_ratio, others.highest_alive_ratio) == (0.2, 0.2)


def test_only_alive_agents_have_a_protocol_version() -> None:
    census = compute_census(facts())
    assert {row.name: row.count for row in census.generations} == {"1.0": 3, "0.3": 1, UNNAMED: 1}


def test_health_of_alive_agents_without_a_document_is_unknown() -> None:
    census = compute_census(facts(health={HealthStatus.HEALTHY: 2, HealthStatus.UNKNOWN: 7}))
    assert {row.name: row.count for row in census.health} == {"unknown": 3, "healthy": 2}
    # An agent may have died since its document was read.
    more = compute_census(facts(health={HealthStatus.HEALTHY: 9}))
    assert {row.name: row.count for row in more.health} == {"healthy": 9}


def test_liveness_signals_are_counted_over_alive_agents() -> None:
    assert [(row.name, row.count, row.share) for row in compute_census(facts()).shown] == [
        ("a card only", 3, 0.6),
        ("an interface that answers", 1, 0.2),
        ("behind a gate: credentials or payment first", 1, 0.2),
    ]


def test_result_shares_are_of_all_targets_and_groups_add_up() -> None:
    census = compute_census(facts())
    assert {row.result: row.share for row in census.results} == {
        "dns_failure": 0.6, "refused": 0.16, "blocked_address": 0.05, "ok": 0.04, "gated": 0.01,
    }  # fmt: skip
    measured = sum(row.count for row in census.results if row.group in {Group.ALIVE, Group.NOT_ALIVE})
    assert measured == census.groups.measured


def test_shares_of_layers_count_requested_targets() -> None:
    discovery, readiness = compute_census(facts()).layers
    assert (discovery.layer, discovery.count) == ("discovery", 65)
    assert {row.result: row.share for row in discovery.results} == {"dns_failure": 60 / 65, "ok": 5 / 65}
    assert discovery.latency is not None
    assert readiness.latency is None


def test_runs_are_in_order_and_each_is_compared_with_the_one_before() -> None:
    runs = compute_census(facts()).runs
    assert [run.groups.alive for run in runs] == [8, 9, 10]
    assert runs[0].change is None
    assert [round(run.change or 0, 3) for run in runs[1:]] == [0.05, 0.05]


def test_run_without_measurements_has_no_change() -> None:
    nothing = RunFacts(began_at_s=MADE_AT_S + DAY_S, ended_at_s=None, counts={None: 10})
    first = RunFacts(began_at_s=MADE_AT_S, ended_at_s=MADE_AT_S, counts={ResultClass.OK: 1})
    runs = compute_census(facts(runs=[nothing, first])).runs
    assert [(run.alive_ratio, run.change) for run in runs] == [(1.0, None), (None, None)]
    assert runs[1].ended_at is None


@pytest.mark.parametrize(
    ("before", "now", "other_list_of"),
    [
        (254, 8, 254),
        (100, 90, None),
        (100, 89, 100),
        (100, 110, None),
        (100, 111, 100),
        (0, 8, None),
        (8, 0, None),
    ],
)
def test_list_that_changed_by_more_than_10_percent_is_not_compared(
    before: int, now: int, other_list_of: int | None
) -> None:
    runs = [
        RunFacts(began_at_s=MADE_AT_S + at, ended_at_s=None, counts={ResultClass.OK: count})
        for at, count in enumerate((before, now))
    ]
    first, second = compute_census(facts(runs=runs)).runs
    assert (first.other_list_of, second.other_list_of) == (None, other_list_of)


def test_oldest_runs_above_the_limit_are_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RUNS", 2)
    assert [run.groups.alive for run in compute_census(facts()).runs] == [9, 10]


@given(st.lists(HOSTS, max_size=20))
def test_every_target_is_counted_once_in_each_part(hosts: list[HostCount]) -> None:
    census = compute_census(facts(hosts=hosts))
    listed = sum(host.count for host in hosts)
    assert census.listed == census.groups.listed == listed
    assert sum(part.groups.listed for part in census.platforms) == listed
    assert sum(row.count for row in census.results) + census.groups.never_probed == listed
    assert sum(row.count for row in census.generations) == census.groups.alive
    by_group: Counter[Group] = Counter()
    for row in census.results:
        by_group[row.group] += row.count
    assert by_group[Group.ALIVE] == census.groups.alive
    assert by_group[Group.NOT_ALIVE] == census.groups.not_alive


@given(st.lists(HOSTS, max_size=10), st.randoms())
def test_order_of_rows_is_ignored(hosts: list[HostCount], chance: Random) -> None:
    shuffled = list(hosts)
    chance.shuffle(shuffled)
    assert compute_census(facts(hosts=hosts)) == compute_census(facts(hosts=shuffled))


def test_json_fits_its_schema_and_reads_back_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_PLATFORMS", 1)
    census = compute_census(facts())
    written = census.model_dump_json()
    assert list(Draft202012Validator(SCHEMA).iter_errors(json.loads(written))) == []
    assert Census.model_validate_json(written) == census
