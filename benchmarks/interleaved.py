"""Interleaved measurement of contestants on a machine that is not quiet.

Every round runs all contestants, each round in another order. The result is the median over the rounds of
the differences and quotients within a round, so that a slowdown of the machine affects all contestants.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

Deed = Callable[[int], object]
"""Does so many times what is measured."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The samples of all contestants, by round, in one unit: nanoseconds per call, or a rate."""

    samples: Mapping[str, Sequence[float]]

    def median(self, name: str) -> float:
        """Return the median of a contestant."""
        return median(self.samples[name])

    def added(self, name: str, to: str) -> float:
        """Return by how much a contestant is above another: the median difference within a round."""
        return median(mine - base for mine, base in self._pairs(name, to))

    def ratio(self, name: str, to: str) -> float:
        """Return a contestant as a multiple of another: the median quotient within a round."""
        return median(mine / base for mine, base in self._pairs(name, to))

    def _pairs(self, name: str, to: str) -> Iterator[tuple[float, float]]:
        return zip(self.samples[name], self.samples[to], strict=True)


def in_rounds(contestants: Mapping[str, Callable[[], float]], *, rounds: int) -> Measured:
    """Take one sample of every contestant in each round; the first round warms up and is dropped."""
    names = list(contestants)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            sample = contestants[name]()
            if turn:
                samples[name].append(sample)
    return Measured(samples)


def measure(functions: Mapping[str, Deed], *, times: int, rounds: int) -> Measured:
    """Measure the nanoseconds for one function; a sample is a run of `times` functions.

    The garbage collector stays on: what it costs belongs to who makes the garbage.
    """

    def timed(function: Deed) -> Callable[[], float]:
        def sample() -> float:
            began_ns = time.perf_counter_ns()
            function(times)
            return (time.perf_counter_ns() - began_ns) / times

        return sample

    return in_rounds({name: timed(function) for name, function in functions.items()}, rounds=rounds)


def repeated(act: Callable[[], object]) -> Deed:
    """Return the function of calling `act` so many times."""

    def function(times: int) -> None:
        for _ in range(times):
            act()

    return function


def verdict(figure: float, *, at_most: float | None = None, at_least: float | None = None) -> str:
    """Return the target of a figure, and whether it is kept."""
    if at_most is not None:
        return f"≤ {at_most:g}: {'kept' if figure <= at_most else 'MISSED'}"
    if at_least is not None:
        return f"≥ {at_least:g}: {'kept' if figure >= at_least else 'MISSED'}"
    return ""


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table; its first column holds names, the others figures."""
    widths = [max(len(row[column]) for row in (columns, *rows)) for column in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        aligned = [cells[0].ljust(widths[0])]
        aligned += [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return "| " + " | ".join(aligned) + " |"

    print(f"\n{title}\n\n{line(columns)}")
    print("|" + "-" * (widths[0] + 2) + "".join("|" + "-" * (width + 1) + ":" for width in widths[1:]) + "|")
    for row in rows:
        print(line(row))
    sys.stdout.flush()


def is_quick(description: str | None) -> bool:
    """Read the command line: whether a smoke run is asked for, whose figures mean little."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, only to see that it runs")
    return bool(parser.parse_args().quick)
