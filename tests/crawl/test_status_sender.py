from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

from lifesign.crawl import status_sender
from lifesign.crawl.status_sender import StatusSender
from lifesign.crawl.worker_config import WorkerStatus


@pytest.fixture
def pipes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Connection, Connection]]:
    """Both ends of a pipe, that of the parent first."""
    monkeypatch.setattr(status_sender, "FLUSH_SECONDS", 0.1)
    ends = Pipe()
    yield ends
    for end in ends:
        end.close()


def lines_in(pipe: Connection) -> list[str | None]:
    found = []
    while pipe.poll(0.1):
        found.append(pipe.recv().line)
    return found


def test_messages_arrive_in_their_order(pipes: tuple[Connection, Connection]) -> None:
    sender = StatusSender(pipes[1])
    for number in range(100):
        sender.send(WorkerStatus(line=str(number)))
    sender.finish()
    assert lines_in(pipes[0]) == [str(number) for number in range(100)]


def test_parent_that_reads_nothing_delays_no_message(
    pipes: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_sender, "MAX_WAITING", 10)
    sender = StatusSender(pipes[1])
    for number in range(10_000):
        sender.send(WorkerStatus(line=f"{number} {'x' * 1_000}"))
    sender.finish()
    sent = [int(line.split()[0]) for line in lines_in(pipes[0]) if line is not None]
    assert sent[0] == 0
    assert sent == sorted(sent)
    assert len(sent) < 10_000


def test_last_progress_is_sent_at_the_end(pipes: tuple[Connection, Connection]) -> None:
    sender = StatusSender(pipes[1])
    for number in range(2_000):
        sender.send_progress(WorkerStatus(line=f"{number} {'x' * 1_000}"))
    sender.finish()
    sent = [int(line.split()[0]) for line in lines_in(pipes[0]) if line is not None]
    assert sent[-1] == 1_999
    assert sent == sorted(sent)


def test_parent_that_is_gone_is_no_error(pipes: tuple[Connection, Connection]) -> None:
    pipes[0].close()
    sender = StatusSender(pipes[1])
    for _ in range(3):
        sender.send(WorkerStatus(line="unread"))
    sender.finish()
