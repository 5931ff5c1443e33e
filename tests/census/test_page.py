from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from tests.support.census_facts import EVIL, MADE_AT_S, facts

from lifesign.census import report as census_module
from lifesign.census import report_tables as tables_module
from lifesign.census.document import LatencySummary
from lifesign.census.page import POLICY, STYLE, as_html
from lifesign.census.plots import bar, latency_bar, trend
from lifesign.census.report import CensusFacts, RunFacts, compute_census
from lifesign.census.report_tables import tables
from lifesign.census.result_groups import Group
from lifesign.domain.observation.results import ResultClass as R

VOID = {"meta"}
"""Elements without an end."""


class Page(HTMLParser):
    """A page as a strict reader sees it: every element is closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page(**changed: object) -> Page:
    return Page(as_html(compute_census(facts(**changed))))


def test_census_page_loads_nothing_from_other_origins() -> None:
    shown = page()
    assert {"script", "link", "img", "iframe", "object"}.isdisjoint(tag for tag, _ in shown.elements)
    loading = {"src", "href", "style", "onload", "onclick", "xlink:href"}
    assert all(loading.isdisjoint(attributes) for _, attributes in shown.elements)
    assert "url(" not in STYLE
    assert "@import" not in STYLE


def test_content_security_policy_allows_only_the_inline_style() -> None:
    written = as_html(compute_census(facts()))
    style = written.partition("<style>")[2].partition("</style>")[0]
    digest = b64encode(sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in POLICY
    assert "default-src 'none'" in POLICY
    metas = [meta for meta in Page(written).of("meta") if meta.get("http-equiv")]
    assert metas == [{"http-equiv": "Content-Security-Policy", "content": POLICY}]


def test_names_in_the_census_page_are_escaped() -> None:
    shown = page(name=EVIL)
    assert not shown.of("script")
    assert any("<script>alert" in text for text in shown.texts)
    assert "\x1b" not in "".join(shown.texts)
    assert "\u202e" not in "".join(shown.texts)


def test_page_has_all_tables_with_their_headings() -> None:
    shown = page()
    census = compute_census(facts())
    assert len(shown.of("table")) == len(list(tables(census)))
    heads = [attributes.get("scope") for attributes in shown.of("th")]
    assert set(heads) == {"col", "row"}
    named = {attributes.get("id") for attributes in shown.of("h2")}
    assert {region["aria-labelledby"] for region in shown.of("section")} == named


def test_headings_come_in_order() -> None:
    levels = [int(tag[1]) for tag, _ in page().elements if tag in {"h1", "h2", "h3"}]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_every_row_of_a_drawn_table_has_its_plot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census_module, "MAX_PLATFORMS", 3)
    monkeypatch.setattr(tables_module, "MAX_SHOWN", 2)
    shown = page()
    rows = {table.key: len(table.rows) for table in tables(compute_census(facts()))}
    drawn = sum(rows[key] for key in ("targets", "results", "layers", "latencies", "generations"))
    drawn += rows["platforms"] + rows["directories"]
    assert sum(attributes.get("class") == "plot" for attributes in shown.of("td")) == drawn


def test_bars_are_hidden_from_screen_readers_and_the_trend_is_text() -> None:
    plots = [attributes for attributes in page().of("svg") if attributes.get("class") in {"bar", "trend"}]
    assert all(plot.get("aria-hidden") == "true" for plot in plots if plot["class"] == "bar")
    (trend_plot,) = [plot for plot in plots if plot["class"] == "trend"]
    assert trend_plot["role"] == "img"
    assert trend_plot["aria-label"] == ("From 40.0 % alive on 2026-09-19 to 50.0 % on 2026-09-21, in 3 runs.")


def test_empty_census_gives_a_page() -> None:
    empty = as_html(compute_census(CensusFacts(name="none", made_at_s=MADE_AT_S, hosts=[])))
    assert "There are no targets." in "".join(Page(empty).texts)


def test_parts_of_a_bar_are_adjacent() -> None:
    drawn = bar([(Group.ALIVE, 0.25), (Group.UNKNOWN, 0.0), (Group.NOT_ALIVE, 0.75)])
    rects = Page(drawn).of("rect")
    assert [(rect["class"], rect["x"], rect["width"]) for rect in rects] == [
        ("alive", "0.000%", "25.000%"),
        ("not_alive", "25.000%", "75.000%"),
    ]


def test_a_latency_beyond_the_scale_is_drawn_at_its_end() -> None:
    took = LatencySummary(count=3, p50_ms=0.0, p90_ms=50.0, p99_ms=1e9)
    places = [float((dot["cx"] or "").rstrip("%")) for dot in Page(latency_bar(took)).of("circle")]
    assert places[0] == 2
    assert places == sorted(places)
    assert places[-1] == 98


def test_single_run_has_no_trend_plot() -> None:
    runs = compute_census(facts()).runs
    assert trend(runs[:1]) == ""
    assert len(Page(trend(runs)).of("circle")) == 3


def test_trend_of_a_mostly_dead_directory_is_not_a_flat_line() -> None:
    few = [
        RunFacts(began_at_s=MADE_AT_S + day, ended_at_s=None, counts={R.OK: alive, R.REFUSED: 1000 - alive})
        for day, alive in enumerate((5, 12))
    ]
    drawn = Page(trend(compute_census(facts(runs=few)).runs))
    assert [text for text in drawn.texts if "%" in text][:5] == ["0 %", "0.5 %", "1 %", "1.5 %", "2 %"]
    first, second = (float(dot["cy"] or 0) for dot in drawn.of("circle"))
    assert first - second > 40
