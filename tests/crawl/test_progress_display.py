import io
import json
import logging
import os
import pty

import pytest

from lifesign.crawl.progress_display import (
    LINE_EVERY_SECONDS,
    RATE_WINDOW_SECONDS,
    CrawlState,
    DrawnProgress,
    ImportStep,
    LoggedProgress,
    PlainProgress,
    Rate,
    counts_text,
    last_line,
    line_of,
    progress_on,
    seconds_left,
)
from lifesign.domain.observation.results import ResultClass
from lifesign.serving import line_writer
from lifesign.serving.log_lines import LogTo
from lifesign.serving.log_output import LogFormat, logging_to

RESULTS: dict[ResultClass | None, int] = {
    ResultClass.OK: 12,
    ResultClass.REFUSED: 1500,
    ResultClass.TIMEOUT: 3,
}


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_probes_are_counted_by_group_and_class() -> None:
    text = "12 alive, 1,503 not alive (refused 1,500, ok 12, timeout 3)"
    assert counts_text(RESULTS) == text
    assert counts_text({}) == "nothing yet"
    silent: dict[ResultClass | None, int] = {
        ResultClass.STALE_DOCUMENT: 7,
        ResultClass.INTERNAL: 47,
        ResultClass.NOT_MEASURED: 1,
    }
    assert counts_text(silent).startswith("55 unknown (internal 47, stale_document 7")


def test_line_shows_progress_and_remaining_time() -> None:
    state = CrawlState(probed=1515, total=181_666, results=RESULTS)
    line = line_of(state, 1500.0)
    assert line.startswith("1,515 of 181,666 probed, 1,500/s, 2 min 1 s left: 12 alive")
    noted = CrawlState(probed=0, total=7, note="registry away")
    assert line_of(noted, None) == "0 of 7 probed: nothing yet; registry away"


def test_progress_without_targets_has_no_percentage() -> None:
    assert last_line(CrawlState(probed=0, total=0), 3.0) == "there was no target to probe"
    noted = CrawlState(probed=0, total=0, note="registry away")
    assert last_line(noted, 3.0) == "there was no target to probe; registry away"


def test_progress_of_an_endless_crawl_counts_targets() -> None:
    latest = {ResultClass.OK: 30, ResultClass.REFUSED: 3, None: 2}
    text = line_of(CrawlState(probed=302, total=None, results=latest, note="3 missed"), 0.5)
    targets = "35 targets: 30 alive, 3 not alive, 2 never probed (ok 30, refused 3)"
    assert text == f"302 probes, 0.5/s; {targets}; 3 missed"
    assert line_of(CrawlState(probed=1, total=None, results={None: 1}), None) == (
        "1 probe; 1 target: 1 never probed"
    )
    assert line_of(CrawlState(probed=0, total=None), 0.5) == "0 probes, 0.5/s; 0 targets"


@pytest.mark.parametrize(("total", "rate"), [(None, 5.0), (10, None), (10, 0.0)])
def test_remaining_time_needs_an_end_and_a_rate(total: int | None, rate: float | None) -> None:
    assert seconds_left(CrawlState(probed=1, total=total), rate) is None


def test_progress_above_the_total_leaves_no_remaining_time() -> None:
    # Targets are added while a census goes on.
    assert seconds_left(CrawlState(probed=12, total=10), 1.0) == 0
    assert "left" not in line_of(CrawlState(probed=12, total=10), 1.0)


def test_progress_rate_is_that_of_the_last_seconds() -> None:
    assert Rate().per_second is None
    rate = Rate()
    for second in range(30):
        # Fast at first, slow at last.
        rate.add(float(second), 1000 * min(second, 10) + 10 * max(0, second - 10))
    assert rate.per_second == 10
    assert RATE_WINDOW_SECONDS < 19


def test_two_reads_at_one_moment_give_no_rate() -> None:
    rate = Rate()
    rate.add(1.0, 0)
    rate.add(1.0, 5)
    assert rate.per_second is None


def test_progress_in_a_log_is_a_periodic_line_and_a_last_one() -> None:
    clock, stream = Clock(), io.StringIO()
    with PlainProgress(stream, clock) as progress:
        for second in range(int(LINE_EVERY_SECONDS) * 2 + 3):
            clock.now_s = float(second)
            progress.show(CrawlState(probed=second, total=100))
        progress.print_line("a directory changed")
    lines = stream.getvalue().splitlines()
    assert [line.split(" ")[0] for line in lines] == ["10", "20", "a", "22"]


def test_json_progress_is_one_log_record_per_line() -> None:
    stream = io.StringIO()
    with (
        progress_on("census", stream, LogFormat.JSON) as progress,
        logging_to(LogTo(progress.log, LogFormat.JSON.value)),
    ):
        progress.print_line("a%s directory\n\x1b changed")
        progress.show(CrawlState(probed=22, total=100))
        logging.getLogger("lifesign.prober").warning("x" * 3000, extra={"worker": "worker-1"})
    text = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["level"], line["logger"]) for line in text] == [
        ("INFO", "lifesign.crawl"),
        ("WARNING", "lifesign.prober"),
        ("INFO", "lifesign.crawl"),
    ]
    assert text[0]["event"] == "a%s directory\n\x1b changed"
    assert (text[1]["event"], text[1]["worker"]) == ("x" * 3000, "worker-1")
    assert text[2]["event"].startswith("22 of 100 probed in 0 s")


def fail_deep_down(calls: int) -> None:
    if calls:
        fail_deep_down(calls - 1)
    raise ValueError("the last line \x1b[2J of the traceback")


@pytest.mark.parametrize("is_drawn", [False, True])
def test_a_traceback_is_shown_to_its_last_line(*, is_drawn: bool) -> None:
    stream = Terminal() if is_drawn else io.StringIO()
    log = logging.getLogger("lifesign.prober")
    with progress_on("census", stream) as progress, logging_to(LogTo(progress.log, LogFormat.CONSOLE.value)):
        try:
            fail_deep_down(5)
        except ValueError:
            log.exception("a process of the crawl ended by a defect")
    shown = next(line for line in stream.getvalue().splitlines() if "a process of the crawl" in line)
    assert shown.endswith(r"ValueError: the last line \x1b[2J of the traceback")


def test_long_list_is_reported_before_the_first_probe() -> None:
    clock, stream = Clock(), io.StringIO()
    with PlainProgress(stream, clock) as progress:
        for second in range(int(LINE_EVERY_SECONDS) * 2 + 3):
            clock.now_s = float(second)
            progress.show_import(ImportStep("a\x1b.txt", "lines read", second * 10_000))
    assert stream.getvalue() == "a\ufffd.txt: 100,000 lines read\na\ufffd.txt: 200,000 lines read\n"
    drawn = Terminal()
    with DrawnProgress("census", drawn, clock) as progress:
        progress.show_import(ImportStep("a.txt", "lines read", 30_000))
        assert "━" not in drawn.getvalue()
        progress.show_import(ImportStep("a.txt", "new targets stored", 500, 2000))
    assert "a.txt: 30,000 lines read" in drawn.getvalue()
    assert "a.txt: 500 of 2,000 new targets stored" in drawn.getvalue()
    assert "━" in drawn.getvalue()


def test_last_line_gives_the_total_time() -> None:
    assert last_line(CrawlState(probed=1515, total=1515, results=RESULTS), 60.5).startswith(
        "1,515 of 1,515 probed in 1 min 1 s, 25/s: 12 alive"
    )
    assert last_line(CrawlState(probed=0, total=None, note="away"), 0.0) == "0 probes in 0 s; 0 targets; away"


def test_control_characters_in_names_are_replaced_on_the_terminal() -> None:
    stream = io.StringIO()
    with PlainProgress(stream) as progress:
        progress.print_line("evil\x1b[2J\u202e")
    assert "\x1b" not in stream.getvalue()
    drawn = Terminal()
    with DrawnProgress("evil\x1b[2J\u202e[bold]", drawn, Clock()) as progress:
        progress.show(CrawlState(probed=1, total=2, note="evil\x1b]0;x\x07\u202e"))
        progress.print_line("evil\x1b]0;x\x07 [bold]")
    shown = drawn.getvalue()
    assert "\x1b]0;" not in shown
    assert "\u202e" not in shown
    assert "[bold]" in shown


def test_terminal_shows_a_progress_bar_below_the_messages() -> None:
    clock, stream = Clock(), Terminal()
    with DrawnProgress("census", stream, clock) as progress:
        for second in range(3):
            clock.now_s = float(second)
            progress.show(CrawlState(probed=second * 500, total=2000, results=RESULTS))
        progress.print_line("list read")
    shown = stream.getvalue()
    assert "census" in shown
    assert "1,000 of 2,000 probed, 500/s, 2 s left" in shown
    assert "list read" in shown
    # The last thing that is seen is a line that stays.
    last = shown.replace("\n", " ").rsplit("\x1b[2K", 1)[-1]
    assert "1,000 of 2,000 probed in 2 s, 500/s: 12 alive" in last


def test_endless_crawl_has_no_progress_bar() -> None:
    stream = Terminal()
    with DrawnProgress("watch", stream, Clock()) as progress:
        progress.show(CrawlState(probed=5, total=None))
    assert "━" not in stream.getvalue()


def test_progress_form_depends_on_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(progress_on("a", io.StringIO()), PlainProgress)
    assert isinstance(progress_on("a", Terminal()), DrawnProgress)
    assert isinstance(progress_on("a", Terminal(), LogFormat.JSON), LoggedProgress)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(progress_on("a", Terminal()), PlainProgress)


class Gone(io.StringIO):
    """A stream whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_crawl_continues_although_its_output_is_not_read() -> None:
    with PlainProgress(Gone()) as progress:
        progress.print_line("reading")
        progress.show(CrawlState(probed=1, total=2))


@pytest.mark.parametrize("log_format", LogFormat)
def test_progress_waits_for_no_reader(log_format: LogFormat) -> None:
    read, written = os.pipe()
    try:
        with os.fdopen(written, "w") as stream, progress_on("a", stream, log_format) as progress:
            for number in range(3_000):
                progress.print_line(f"directory {number} {'x' * 100}")
            found = b""
            while b"2999" not in found:
                found += os.read(read, 65_536)
    finally:
        os.close(read)
    assert len(found.splitlines()) == 3_000


def test_drawn_progress_waits_for_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(line_writer, "FLUSH_SECONDS", 0.1)
    shown, written = pty.openpty()
    with os.fdopen(written, "w") as stream, progress_on("a", stream) as progress:
        assert isinstance(progress, DrawnProgress)
        for number in range(2_000):
            progress.show(CrawlState(probed=number, total=2_000, note="x" * 70))
        progress.print_line("directory 999")
        found = b""
        while b"directory 999" not in found:
            found += os.read(shown, 65_536)
    os.close(shown)
    # Pictures that would have to wait are left out.
    assert 1 <= found.count(b"x" * 70) < 2_000
