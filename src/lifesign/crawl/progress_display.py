"""Progress of a crawl, and its display.

On a terminal it is a bar; elsewhere a line from time to time, for logs. Both go to standard error: the
results of a command go to standard output. A crawl never waits for a reader of its progress.
"""

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self, TextIO, cast

from lifesign.domain.net.peer_text import printable
from lifesign.domain.text.counts import count_text, pluralize
from lifesign.domain.text.durations import duration_text
from lifesign.serving.log_output import LogFormat
from lifesign.serving.nonblocking_stream import NonBlockingStream, copied_descriptor

if TYPE_CHECKING:
    from lifesign.domain.observation.results import ResultClass

LINE_EVERY_SECONDS: Final = 10.0
"""Interval of lines where a bar is impossible."""
NO_TARGETS: Final = "there was no target to probe"
_LOGGER: Final = "lifesign.crawl"
RATE_WINDOW_SECONDS: Final = 10.0
"""Period of the rate, since a crawl begins with fast probes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlState:
    """Progress of a crawl, all its processes together."""

    probed: int
    """Since it began."""
    total: int | None
    """Number of targets to probe; None for a crawl without an end."""
    results: Mapping["ResultClass | None", int] = field(default_factory=dict)
    """Results of those probes; for a continuous crawl, the number of targets by latest result.

    None: never probed.
    """
    listed: int | None = None
    """Number of targets, if `results` lacks those of processes that are starting."""
    unanswered: int = 0
    """Look-ups of names that no name server answered."""
    note: str = ""
    """Further information, such as an unreachable registry."""


@dataclass(frozen=True, slots=True)
class ImportStep:
    """Progress of the conversion of a directory's entries to targets."""

    directory: str
    doing: str
    """Name of the step, such as `lines read`."""
    done: int
    total: int | None = None
    """None: unknown."""


class Rate:
    """Rate per second at which a count rises, over the last RATE_WINDOW_SECONDS."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []
        self._began_s: float | None = None

    @property
    def lasted_s(self) -> float:
        """Time from the first measurement to the last, in seconds."""
        return self._seen[-1][0] - self._began_s if self._began_s is not None else 0.0

    def add(self, now_s: float, count: int) -> None:
        """Record the count at this time; neither may decrease."""
        if self._began_s is None:
            self._began_s = now_s
        self._seen.append((now_s, count))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - RATE_WINDOW_SECONDS:
            del self._seen[0]

    @property
    def per_second(self) -> float | None:
        """Rate per second; None before the second measurement."""
        if len(self._seen) < 2:
            return None
        (began_s, first), (now_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / (now_s - began_s) if now_s > began_s else None


def counts_text(results: Mapping["ResultClass | None", int]) -> str:
    """Return the counts of probes or targets: by group, with the largest classes."""
    from lifesign.census.report_tables import GROUP_WORDS  # noqa: PLC0415
    from lifesign.census.result_groups import GROUPS, Group  # noqa: PLC0415 - pydantic takes 60 ms

    groups: Counter[Group] = Counter()
    for result, count in results.items():
        groups[GROUPS[result]] += count
    text = [f"{count_text(groups[group])} {GROUP_WORDS[group]}" for group in Group if groups[group]]
    classes = [(result, count) for result, count in results.items() if result is not None and count]
    classes.sort(key=lambda item: (-item[1], item[0]))
    detail = ", ".join(f"{result} {count_text(count)}" for result, count in classes)
    return f"{', '.join(text)}{f' ({detail})' if detail else ''}" if text else "nothing yet"


def results_text(state: CrawlState) -> str:
    """Return the results so far; a continuous crawl counts each target once."""
    if state.total is not None:
        return counts_text(state.results)
    targets = pluralize(max(sum(state.results.values()), state.listed or 0), "target")
    return f"{targets}: {counts_text(state.results)}" if any(state.results.values()) else targets


def rate_text(state: CrawlState, rate: float | None) -> str:
    """Return the number of probes, their rate, and the remaining time."""
    text = pluralize(state.probed, "probe")
    if state.total is not None:
        text = f"{count_text(state.probed)} of {count_text(state.total)} probed"
    if rate is not None:
        text += f", {rate:,.0f}/s" if rate >= 10 else f", {rate:.1f}/s"
    left_s = seconds_left(state, rate)
    return f"{text}, {duration_text(math.ceil(left_s))} left" if left_s else text


def step_text(step: ImportStep) -> str:
    """Return the progress of a directory on one line."""
    total = "" if step.total is None else f" of {count_text(step.total)}"
    return f"{step.directory}: {count_text(step.done)}{total} {step.doing}"


def line_of(state: CrawlState, rate: float | None) -> str:
    """Return the progress on one line."""
    return _pace_line(rate_text(state, rate), state)


def last_line(state: CrawlState, lasted_s: float) -> str:
    """Return the final results and the duration on one line."""
    if state.total == 0:
        return f"{NO_TARGETS}; {state.note}" if state.note else NO_TARGETS
    text = f"{rate_text(state, None)} in {duration_text(math.ceil(lasted_s))}"
    if lasted_s > 0:
        rate = state.probed / lasted_s
        text += f", {rate:,.0f}/s" if rate >= 10 else f", {rate:.1f}/s"
    return _pace_line(text, state)


def _pace_line(pace: str, state: CrawlState) -> str:
    text = f"{pace}{'; ' if state.total is None else ': '}{results_text(state)}"
    return f"{text}; {state.note}" if state.note else text


def seconds_left(state: CrawlState, rate: float | None) -> float | None:
    """Return the remaining time at this rate; None if unknown."""
    if state.total is None or not rate:
        return None
    return max(0, state.total - state.probed) / rate


class ProgressDisplay(Protocol):
    """Shows the progress of a crawl."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, state: CrawlState) -> None:
        """Show the progress; called about once or twice a second."""

    def show_import(self, step: ImportStep) -> None:
        """Show the progress of an import before the first probe."""

    def print_line(self, text: str) -> None:
        """Print a line that later progress does not overwrite."""

    def log(self, line: str) -> None:
        """Show a line of the log, which is in the form `log_format`."""

    @property
    def log_format(self) -> LogFormat:
        """Format of the output: for people or for programs."""


class PlainProgress:
    """Prints the progress on one line every LINE_EVERY_SECONDS, and at the end."""

    log_format = LogFormat.CONSOLE

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        copy_fd = copied_descriptor(stream)
        self._output = (
            None if copy_fd is None else NonBlockingStream(copy_fd, stream.encoding, self._omission_line)
        )
        self._stream = self._output or stream
        self._clock = clock
        self._rate = Rate()
        self._said_at_s = clock()
        self._last: CrawlState | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._last is not None:
            self.print_line(last_line(self._last, self._rate.lasted_s))
        if self._output is not None:
            self._output.close()

    def show(self, state: CrawlState) -> None:
        """Print the progress if LINE_EVERY_SECONDS have passed since the last line."""
        now_s = self._clock()
        self._rate.add(now_s, state.probed)
        self._last = state
        if now_s - self._said_at_s >= LINE_EVERY_SECONDS:
            self._said_at_s = now_s
            self.print_line(line_of(state, self._rate.per_second))

    def show_import(self, step: ImportStep) -> None:
        """Print the progress of an import if LINE_EVERY_SECONDS have passed since the last line."""
        now_s = self._clock()
        if now_s - self._said_at_s >= LINE_EVERY_SECONDS:
            self._said_at_s = now_s
            self.print_line(step_text(step))

    def print_line(self, text: str) -> None:
        """Write a line."""
        self._write(self._line_of(text))

    def log(self, line: str) -> None:
        """Write a line of the log, which is already printable and bounded."""
        self._write(line)

    def _write(self, line: str) -> None:
        """Write it; a crawl continues without a reader."""
        with suppress(OSError):
            self._stream.write(f"{line}\n")
            self._stream.flush()

    def _line_of(self, text: str) -> str:
        return printable(text)

    def _omission_line(self, text: str) -> str:
        return f"{self._line_of(text)}\n"


class LoggedProgress(PlainProgress):
    """Prints the progress as JSON lines in the format of the log."""

    log_format = LogFormat.JSON

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        from lifesign.serving.log_lines import LogLine  # noqa: PLC0415 - takes 60 ms

        super().__init__(stream, clock)
        self._line = LogLine("json")

    def _line_of(self, text: str) -> str:
        """Return the progress as a log record."""
        return self._line.format(logging.LogRecord(_LOGGER, logging.INFO, "", 0, text, None, None))


class DrawnProgress:
    """Draws a progress bar with rich, and below it the results of the probes."""

    log_format = LogFormat.CONSOLE

    def __init__(self, name: str, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console  # noqa: PLC0415 - takes 200 ms
        from rich.live import Live  # noqa: PLC0415
        from rich.progress import BarColumn, TextColumn  # noqa: PLC0415
        from rich.progress import Progress as Bar  # noqa: PLC0415

        self._clock = clock
        self._rate = Rate()
        self._last: CrawlState | None = None
        self._bar = Bar(TextColumn("{task.description}", markup=False), BarColumn(), auto_refresh=False)
        self._task = self._bar.add_task(printable(name), total=None)
        copy_fd = copied_descriptor(stream)
        self._output = (
            None
            if copy_fd is None
            else NonBlockingStream(copy_fd, stream.encoding, "{}\n".format, is_at_once=False)
        )
        shown_on = cast("TextIO", self._output or stream)
        self._console = Console(file=shown_on, highlight=False, markup=False)
        # Drawn when something changes: it needs no thread.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        if self._last is not None:
            self.print_line(last_line(self._last, self._rate.lasted_s))
        if self._output is not None:
            self._output.close()

    def show(self, state: CrawlState) -> None:
        """Draw the bar and the results again."""
        self._rate.add(self._clock(), state.probed)
        self._last = state
        lines = [rate_text(state, self._rate.per_second), results_text(state), state.note]
        self._draw(lines, state.probed, state.total)

    def show_import(self, step: ImportStep) -> None:
        """Draw the progress of an import again."""
        self._draw([step_text(step)], step.done, step.total)

    def print_line(self, text: str) -> None:
        """Write a line above the bar."""
        self._console.print(printable(text), soft_wrap=True)

    def log(self, line: str) -> None:
        """Write a line of the log above the bar, as it is."""
        self._console.print(line, soft_wrap=True)

    def _draw(self, lines: Iterable[str], done: int, total: int | None) -> None:
        from rich.console import Group  # noqa: PLC0415 - loaded by now
        from rich.text import Text  # noqa: PLC0415

        if self._output is not None and not self._output.is_idle:
            # The reader is slow: the next picture replaces this one.
            return
        below = Text(printable_lines(lines), no_wrap=True, overflow="ellipsis")
        self._bar.update(self._task, completed=done, total=total)
        self._live.update(Group(self._bar, below) if total is not None else below, refresh=True)


def printable_lines(lines: Iterable[str]) -> str:
    """Return the lines that are not empty as printable text."""
    return "\n".join(printable(line) for line in lines if line)


def progress_on(name: str, stream: TextIO, log_format: LogFormat = LogFormat.CONSOLE) -> ProgressDisplay:
    """Return the display for a stream: JSON if requested, drawn on a capable terminal, else in lines."""
    if log_format == LogFormat.JSON:
        return LoggedProgress(stream)
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return DrawnProgress(name, stream)
    return PlainProgress(stream)
