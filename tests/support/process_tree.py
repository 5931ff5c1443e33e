"""The processes below a process. One that ends meanwhile is left out."""

from contextlib import suppress
from pathlib import Path


def children(pid: int) -> list[int]:
    """Return the ids of those that the threads of a process started."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, (thread / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes below one, each parent before its children."""
    return [each for child in children(pid) for each in (child, *descendants(child))]


def fork_servers(pid: int) -> list[int]:
    """Return the children that fork for each worker process: one, unless it was killed."""
    found = []
    for child in children(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            if b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def worker_processes(pid: int) -> list[int]:
    """Return the processes that share the work of a server or a crawl."""
    return [worker for server in fork_servers(pid) for worker in children(server)]
