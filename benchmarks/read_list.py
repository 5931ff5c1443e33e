"""Time and memory to read a directory of a million agents.

The directory is a file, once in each form of a plain list. Each form is read in a process of its own, which
reports its peak of memory. The baseline splits the same lines and puts them into a set.
"""

import asyncio
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.interleaved import is_quick, print_table, verdict

from lifesign.prober.directories import ListSource, Snapshot, read_directory

COLUMNS = ["a list in", "MB", "seconds", "CPU µs per agent", "beside a set of lines", "peak MiB", "kept?"]
MAX_US = 12.0
"""Of CPU per agent."""


def urls(number: int) -> Iterator[str]:
    return (f"https://agent-{n}.example-{n % 997}.org/.well-known/agent-card.json" for n in range(number))


def in_text(number: int) -> Iterator[str]:
    return (f"{url}\n" for url in urls(number))


def in_domains(number: int) -> Iterator[str]:
    return (f"agent-{n}.example-{n % 997}.org\n" for n in range(number))


def in_csv(number: int) -> Iterator[str]:
    yield "name,url\n"
    yield from (f"Agent {n},{url}\n" for n, url in enumerate(urls(number)))


def in_jsonl(number: int) -> Iterator[str]:
    return (json.dumps({"name": f"Agent {n}", "url": url}) + "\n" for n, url in enumerate(urls(number)))


def in_json(number: int) -> Iterator[str]:
    # As many as one document may hold.
    yield json.dumps(list(urls(min(number, 800_000))))


WAYS: dict[str, tuple[str, Callable[[int], Iterator[str]]]] = {
    "text, URLs": ("agents.txt", in_text),
    "text, domains": ("domains.txt", in_domains),
    "CSV": ("agents.csv", in_csv),
    "JSONL": ("agents.jsonl", in_jsonl),
    "JSON": ("agents.json", in_json),
}


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed_reading(file: Path) -> tuple[int, float, float, float]:
    """Return how many agents there are, the seconds, the CPU's seconds, and the peak of memory in MiB."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    found = asyncio.run(read_directory(ListSource(file=file)))
    if not isinstance(found, Snapshot):
        raise SystemExit(f"{file.name}: {found}")
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    return len(found.entries), took_s, cpu_s, peak_mib()


def timed_set(file: Path) -> float:
    """Return the CPU's seconds for the least that can be done."""
    began_s = time.process_time()
    with file.open() as lines:
        found = {line.strip() for line in lines}
    took_s = time.process_time() - began_s
    if not found:
        raise SystemExit("the list is empty")
    return took_s


def main() -> None:
    number = 100_000 if is_quick(__doc__) else 1_000_000
    rows = []
    context = multiprocessing.get_context("spawn")
    with TemporaryDirectory() as directory:
        for way, (name, lines) in WAYS.items():
            file = Path(directory, name)
            with file.open("w") as opened:
                opened.writelines(lines(number))
            with context.Pool(1, maxtasksperchild=1) as pool:
                agents, took_s, cpu_s, mib = pool.apply(timed_reading, [file])
                least_s = pool.apply(timed_set, [file])
            us = cpu_s / agents * 1e6
            size = f"{file.stat().st_size / 1e6:.0f}"
            times = f"{cpu_s / least_s:.0f} x" if name.endswith(".txt") else "-"
            kept = verdict(us, at_most=MAX_US)
            rows.append([way, size, f"{took_s:.1f}", f"{us:.1f}", times, f"{mib:.0f}", kept])
            file.unlink()
    print_table(f"a list of {number:,} agents", COLUMNS, rows)


if __name__ == "__main__":
    main()
