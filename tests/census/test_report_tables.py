"""The tables of a census."""

import pytest
from tests.support.census_facts import MADE_AT_S, facts

from lifesign.census import report as census_module
from lifesign.census import report_tables as tables_module
from lifesign.census.report import CensusFacts, HostCount, RunFacts, compute_census
from lifesign.census.report_tables import (
    GROUP_WORDS,
    PROBER_NETWORK_WARNING,
    RESULT_WORDS,
    headline,
    share_heading,
    tables,
)
from lifesign.census.result_groups import Group
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.targets.target import TargetKind


def test_each_result_class_and_group_has_a_text() -> None:
    assert set(RESULT_WORDS) == set(ResultClass)
    assert set(GROUP_WORDS) == set(Group)


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ([], "There are no targets."),
        ([HostCount("a.example", None, None, 1)], "None of 1 target has been probed yet."),
        ([HostCount("a.example", None, None, 2)], "None of 2 targets has been probed yet."),
        (
            [
                HostCount("a.example", ResultClass.NOT_MEASURED, None, 3),
                HostCount("a.example", None, None, 1),
            ],
            "3 targets were probed, without a current measured result. 1 target was never probed.",
        ),
        (
            [
                HostCount("a.example", ResultClass.OK, None, 2201),
                HostCount("a.example", ResultClass.REFUSED, None, 179_465),
            ],
            "2,201 of 181,666 measured targets are alive (1.2 %).",
        ),
    ],
)
def test_headline_gives_the_share_of_measured_targets(hosts: list[HostCount], message: str) -> None:
    assert headline(compute_census(facts(hosts=hosts))) == message


@pytest.mark.parametrize(
    ("results", "is_warned"),
    [
        ([ResultClass.REFUSED, ResultClass.TIMEOUT, ResultClass.DNS_FAILURE, ResultClass.TLS_FAILURE], True),
        ([ResultClass.INTERNAL], True),
        ([ResultClass.REFUSED, ResultClass.BLOCKED_ADDRESS, None], True),
        ([ResultClass.REFUSED, ResultClass.OK], False),
        ([ResultClass.REFUSED, ResultClass.NOT_AN_AGENT], False),
        ([ResultClass.REFUSED, ResultClass.RATE_LIMITED], False),
        ([ResultClass.BLOCKED_ADDRESS, ResultClass.NOT_MEASURED], False),
        ([None], False),
        ([], False),
    ],
)
def test_headline_without_any_answer_suspects_the_probers_network(
    results: list[ResultClass | None], *, is_warned: bool
) -> None:
    hosts = [HostCount("a.example", result, None, 1) for result in results]
    assert (PROBER_NETWORK_WARNING in headline(compute_census(facts(hosts=hosts, runs=())))) is is_warned


@pytest.mark.parametrize(("measured", "is_warned"), [(0, True), (1, False)])
def test_last_run_without_any_answer_is_included(measured: int, *, is_warned: bool) -> None:
    hosts = [HostCount("a.example", ResultClass.OK, None, 5)]
    counts: dict[ResultClass | None, int] = {ResultClass.NOT_MEASURED: 5 - measured, ResultClass.OK: measured}
    run = RunFacts(began_at_s=MADE_AT_S - 60, ended_at_s=MADE_AT_S - 1, counts=counts)
    assert (PROBER_NETWORK_WARNING in headline(compute_census(facts(hosts=hosts, runs=[run])))) is is_warned


def test_all_rows_of_a_table_have_its_columns() -> None:
    shown = {table.key: table for table in tables(compute_census(facts()))}
    assert list(shown) == [
        "targets", "results", "layers", "latencies", "platforms", "directories", "generations", "health",
        "shown", "gone", "runs",
    ]  # fmt: skip
    for table in shown.values():
        assert all(len(row) == len(table.heads) for row in table.rows)


@pytest.mark.parametrize("has_servers", [True, False])
def test_kinds_have_a_table_if_there_are_mcp_servers(*, has_servers: bool) -> None:
    kinds = [(TargetKind.A2A, ResultClass.OK, 4), (TargetKind.MCP, ResultClass.OK, 1)][: 1 + has_servers]
    shown = {table.key: table for table in tables(compute_census(facts(kinds=kinds)))}
    assert ("kinds" in shown) == has_servers
    words = {row[0] for row in shown["layers"].rows}
    assert ("card" in words) == (not has_servers)


def test_each_share_states_its_total() -> None:
    heads = {table.key: table.heads[-1] for table in tables(compute_census(facts()))}
    living = dict.fromkeys(("generations", "health", "shown"), "of the living")
    parts = dict.fromkeys(("platforms", "directories"), "alive of measured")
    assert heads == {
        "targets": "of all", "results": "of all", "layers": "of the layer's", "gone": "of the gone",
        "latencies": "p99", "runs": "change", **living, **parts,
    }  # fmt: skip


def test_a_table_without_rows_is_not_shown() -> None:
    census = compute_census(CensusFacts(name="none", made_at_s=MADE_AT_S, hosts=[]))
    assert [table.key for table in tables(census)] == ["targets"]


def test_number_of_omitted_platforms_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census_module, "MAX_PLATFORMS", 2)
    monkeypatch.setattr(tables_module, "MAX_SHOWN", 1)
    shown = {table.key: table for table in tables(compute_census(facts()))}
    assert len(shown["platforms"].rows) == 1
    assert shown["platforms"].note == (
        "By registrable domain. 3 more platforms with 39 targets: 20.0 % to 20.0 % alive."
    )


def test_heading_separates_never_probed_from_not_measured() -> None:
    never, vain = (
        HostCount("a.example", None, None, 1),
        HostCount("b.example", ResultClass.NOT_MEASURED, None, 1),
    )
    assert share_heading(compute_census(facts(hosts=[never]))) == "No target has been probed yet"
    assert share_heading(compute_census(facts(hosts=[never, vain]))) == "Nothing was measured"
