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


def worker_processes(pid: int) -> list[int]:
    """Return the children that share the work; multiprocessing has one more, which only tracks resources."""
    found = []
    for child in children(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found
