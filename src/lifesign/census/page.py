"""How does a census look as a page?

One file that needs nothing else: no script, no font, no picture from elsewhere, and a policy in it that
forbids all of them. All text is escaped: names in it come from directories and from hosts.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from itertools import chain, islice
from typing import Final

from lifesign.census.document import Census, LayerShares, NamedGroups, ResultCount
from lifesign.census.plots import bar, groups_bar, latency_bar, trend
from lifesign.census.result_groups import Group
from lifesign.census.tables import GROUP_WORDS, Table, headline, of_groups, tables
from lifesign.census.text_formats import LIMITS, period
from lifesign.domain.text.counts import percent_text
from lifesign.domain.text.safe_text import harmless

STYLE: Final = """
:root {
  color-scheme: light dark;
  --ground: #fff; --text: #1c2127; --faint: #5b6570; --line: #dfe3e8;
  --alive: #11776b; --not-alive: #c2502f; --unknown: #6f7f94; --never: #c3cad3;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14181d; --text: #e4e8ec; --faint: #9aa5b1; --line: #313942;
    --alive: #35b5a2; --not-alive: #e8795a; --unknown: #8597ae; --never: #4b5663;
  }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 64rem; background: var(--ground);
  color: var(--text); font: 1rem/1.5 system-ui, sans-serif }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .25rem }
p { margin: .25rem 0 }
.faint, caption, footer { color: var(--faint) }
.share { font-size: 3.5rem; line-height: 1.1; font-weight: 600; margin: 1rem 0 0 }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0; margin: .5rem 0 }
.legend svg { vertical-align: -1px; margin-right: .4rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
caption { text-align: left; padding-bottom: .25rem }
th, td { padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top; font-weight: 400; white-space: nowrap }
th.word, td.word { text-align: left }
td.word { white-space: normal }
tbody th { white-space: normal; overflow-wrap: break-word; max-width: 20rem }
thead th { color: var(--faint); vertical-align: bottom; white-space: normal }
td.plot { min-width: 9rem; width: 30%; padding: .5rem 0 0 }
svg.bar, svg.trend { display: block; overflow: visible }
.alive { fill: var(--alive) } .not_alive { fill: var(--not-alive) }
.unknown { fill: var(--unknown) } .never_measured { fill: var(--never) }
.axis { stroke: var(--line) } .span, line.trend { stroke: var(--alive); stroke-width: 2 }
.dot { fill: var(--alive) }
text { fill: var(--faint); font-size: 12px }
footer { margin-top: 3rem }
@media print { body { max-width: none; padding: 0 } .wide { overflow: visible } }
"""
POLICY: Final = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; "
    f"style-src 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'"
)


def as_html(census: Census) -> str:
    """Return the whole page."""
    return "\n".join(_page(census)) + "\n"


def _page(census: Census) -> Iterator[str]:
    title = escape(harmless(f"Census: {census.name}"))
    yield "<!doctype html>"
    yield '<html lang="en">'
    yield '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
    yield '<meta name="referrer" content="no-referrer">'
    yield f"<title>{title}</title><style>{STYLE}</style></head>"
    yield "<body>"
    yield "<header>"
    yield f"<h1>{title}</h1>"
    yield f'<p class="faint">{escape(period(census))}</p>'
    yield "</header>"
    yield "<main>"
    if census.alive_ratio is not None:
        yield f'<p class="share">{escape(percent_text(census.alive_ratio))}</p>'
    yield f"<p>{escape(headline(census))}</p>"
    yield groups_bar(census.groups)
    yield legend()
    for table in tables(census):
        yield from _section(table, census)
    yield "</main>"
    yield f"<footer><p>{escape(LIMITS)}</p></footer>"
    yield "</body>"
    yield "</html>"


def legend() -> str:
    """Say which colour means what."""
    items = (
        '<li><svg width="12" height="12" aria-hidden="true">'
        f'<rect class="{group}" width="12" height="12"/></svg>{GROUP_WORDS[group]}</li>'
        for group in Group
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _section(table: Table, census: Census) -> Iterator[str]:
    yield f'<section aria-labelledby="{table.key}">'
    yield f'<h2 id="{table.key}">{escape(table.title)}</h2>'
    if table.key == "runs":
        yield trend(census.runs[-len(table.rows) :])
    # Whoever has no mouse scrolls a wide table with the arrow keys.
    yield f'<div class="wide" role="region" tabindex="0" aria-labelledby="{table.key}">'
    yield from _table(table, plots_of(table, census))
    yield "</div></section>"


def _table(table: Table, plots: Sequence[str]) -> Iterator[str]:
    yield "<table>"
    if table.note:
        yield f"<caption>{escape(harmless(table.note))}</caption>"
    heads = "".join(
        f'<th scope="col"{_is_word(table, at)}>{escape(head)}</th>' for at, head in enumerate(table.heads)
    )
    yield f"<thead><tr>{heads}{'<td></td>' if plots else ''}</tr></thead>"
    yield "<tbody>"
    for place, row in enumerate(table.rows):
        cells = [f'<th scope="row" class="word">{escape(harmless(row[0]))}</th>']
        cells += [
            f"<td{_is_word(table, at)}>{escape(harmless(text))}</td>"
            for at, text in enumerate(row[1:], start=1)
        ]
        if plots:
            cells.append(f'<td class="plot">{plots[place]}</td>')
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table>"


def _is_word(table: Table, column: int) -> str:
    return ' class="word"' if column < table.words else ""


def _all_groups(census: Census) -> Iterator[str]:
    whole = census.listed or 1
    return (bar([(group, count / whole)]) for group, count in of_groups(census.groups))


def _results(rows: Sequence[ResultCount]) -> Iterator[str]:
    return (bar([(row.group, row.share or 0.0)]) for row in rows)


def _layer(layer: LayerShares) -> Iterator[str]:
    yield from _results(layer.results)
    if layer.not_asked:
        yield bar([])


def _parts(parts: Sequence[NamedGroups]) -> Iterator[str]:
    return (groups_bar(part.groups) for part in parts)


_PLOTS: Final[Mapping[str, Callable[[Census], Iterable[str]]]] = {
    "targets": _all_groups,
    "results": lambda census: _results(census.results),
    "layers": lambda census: chain.from_iterable(map(_layer, census.layers)),
    "latencies": lambda census: (
        latency_bar(layer.latency) for layer in census.layers if layer.latency is not None
    ),
    "platforms": lambda census: _parts(census.platforms),
    "directories": lambda census: _parts(census.directories),
    "generations": lambda census: (bar([(Group.ALIVE, row.share or 0.0)]) for row in census.generations),
}
"""What is drawn beside each row of a table, by its key; where there is nothing, numbers say it all."""


def plots_of(table: Table, census: Census) -> list[str]:
    """Return what is drawn beside each row of a table; empty where numbers say it all."""
    draw = _PLOTS.get(table.key)
    return [] if draw is None else list(islice(draw(census), len(table.rows)))
