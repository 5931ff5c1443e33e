import csv
import io
import json

import pytest
from tests.support.census_facts import EVIL, MADE_AT_S, facts

from lifesign.census import report
from lifesign.census.page import as_html
from lifesign.census.report import RunFacts, compute_census
from lifesign.census.text_formats import CSV_HEADS, as_csv, as_json, as_markdown, plain
from lifesign.domain.observation.results import ResultClass as R


def rows_of_csv(name: str = "mixed") -> list[list[str]]:
    return list(csv.reader(io.StringIO(as_csv(compute_census(facts(name=name))), newline="")))


def test_markdown_begins_with_the_summary() -> None:
    lines = as_markdown(compute_census(facts())).splitlines()
    assert lines[0] == "# Census: mixed"
    assert lines[2] == "5 of 81 measured targets are alive (6.2 %), 1 of them behind a gate."
    assert "| never probed |      14 | 14.0 % |" in lines


def test_covered_time_is_given_to_the_second() -> None:
    taken = compute_census(facts())
    assert as_markdown(taken).splitlines()[3] == (
        "Taken 2026-09-21 14:13:20 UTC, each target by its last probe. "
        "Layers and latencies cover the probes from 2026-09-21 14:08:20 to 2026-09-21 14:13:20 UTC."
    )
    never = compute_census(facts(since_s=None, until_s=None))
    assert as_markdown(never).splitlines()[3].endswith("by its last probe.")
    assert ["period", "", "since", "2026-09-21T14:08:20Z"] in rows_of_csv()


def test_columns_of_markdown_are_aligned() -> None:
    lines = as_markdown(compute_census(facts())).splitlines()
    tables: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("|"):
            tables[-1].append(line)
        elif tables[-1]:
            tables.append([])
    assert len(tables) == 12
    for table in filter(None, tables):
        assert len({len(line) for line in table}) == 1


def test_names_in_text_tables_are_escaped() -> None:
    written = as_markdown(compute_census(facts(name=EVIL)))
    assert "\\<script\\>" in written
    assert "<script>" not in written
    assert all(line.isprintable() for line in written.split("\n"))
    rows = [line for line in written.splitlines() if "script" in line and line.startswith("|")]
    assert [line.replace("\\|", "").count("|") for line in rows] == [8]


def test_plain_text_keeps_harmless_characters() -> None:
    assert plain("dns_failure a-b.example (x)") == "dns_failure a-b.example (x)"


def test_json_is_whole_and_ends_with_a_line_break() -> None:
    written = as_json(compute_census(facts()))
    assert written.endswith("}\n")
    read = json.loads(written)
    assert read["census_version"] == "1.0"
    assert read["made_at"] == "2026-09-21T14:13:20.000Z"
    assert read["groups"] == {"alive": 5, "not_alive": 76, "unknown": 5, "never_probed": 14}


def test_csv_has_one_fact_per_row() -> None:
    rows = rows_of_csv()
    assert rows[0] == list(CSV_HEADS)
    assert {len(row) for row in rows} == {4}
    assert ["targets", "", "never_probed", "14"] in rows
    assert ["platforms", "vercel.app", "alive_ratio", "0.2"] in rows
    assert ["latencies", "discovery", "p99_ms", "1978.0"] in rows
    # Unknown values are empty, not zero.
    assert ["platforms", "example.org", "alive_ratio", ""] in rows


def test_platforms_beyond_the_bound_are_facts_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_PLATFORMS", 1)
    rows = rows_of_csv()
    assert ["other_platforms", "", "platforms", "3"] in rows
    assert ["platforms", "vercel.app", "alive_ratio", "0.2"] not in rows


def test_each_format_reports_runs_of_different_lists() -> None:
    counts: list[dict[R | None, int]] = [{R.OK: 48, R.REFUSED: 206}, {R.OK: 3, R.REFUSED: 4, None: 1}]
    runs = [
        RunFacts(began_at_s=MADE_AT_S + at, ended_at_s=MADE_AT_S + at, counts=count)
        for at, count in enumerate(counts)
    ]
    taken = compute_census(facts(runs=runs))
    message = "+24.0 points (254 → 8 targets: "
    assert f"| {message}" in as_markdown(taken)
    assert message in as_html(taken)
    assert "Not all runs had the same list." in as_html(taken)
    assert [run["other_list_of"] for run in json.loads(as_json(taken))["runs"]] == [None, 254]
    assert ["other_list_of", "254"] in [row[2:] for row in csv.reader(io.StringIO(as_csv(taken), newline=""))]
    assert "254" not in as_markdown(compute_census(facts()))


def test_names_in_csv_cannot_start_a_formula() -> None:
    evil = '=HYPERLINK("http://evil.example","x")'
    written = as_csv(compute_census(facts(directories=[(evil, None, 1)])))
    names = {row[1] for row in csv.reader(io.StringIO(written, newline=""))}
    assert f"'{evil}" in names
    assert evil not in names


def test_targets_of_which_a_layer_was_not_asked_are_a_fact_of_it() -> None:
    taken = compute_census(facts())
    layers = [layer.model_copy(update={"not_asked": 3}) for layer in taken.layers]
    asked_less = taken.model_copy(update={"layers": layers})
    rows = [row for row in csv.reader(io.StringIO(as_csv(asked_less))) if row[2] == "not_asked"]
    assert rows == [["layers", layer.layer, "not_asked", "3"] for layer in layers]
    assert as_html(asked_less).count("<svg") == as_html(taken).count("<svg") + len(layers)
