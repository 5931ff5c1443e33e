"""Speed of the prober relative to a bare client where all targets are alive, and the cost of a GET.

One process probes card and document of each target: validated, classified, stored in SQLite. The first pass
registers each target as an agent; the second compares its card with the stored one. The bare client sends
the same two GETs with aiohttp and ignores the answers. prometheus-blackbox-exporter is given addresses
instead of names. The contestants take turns on one core, and the fleet has the other.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.interleaved import Measured, in_rounds, is_quick, print_table, verdict
from benchmarks.target_fleet import (
    CARD_PATH,
    HEALTH_PATH,
    ZONE,
    RunningFleet,
    TargetFleet,
    cpu_seconds,
    running_fleet,
)

from lifesign.crawl.backend import LocalBackend, open_local_backend
from lifesign.crawl.directory_import import DirectoryImporter
from lifesign.crawl.local_ledger import LocalLedger
from lifesign.crawl.prober_assembly import open_prober
from lifesign.crawl.process import run_loop
from lifesign.domain.observation.results import ResultClass
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.directories.source import Got, WantedDocument
from lifesign.prober.registry_exchange.ledger import (
    NO_WITNESS_REPORT,
    Granted,
    ReportAnswer,
    ShardBatch,
    WitnessReport,
)
from lifesign.prober.worker.main_loop import ProbeWorker

BLACKBOX = shutil.which("prometheus-blackbox-exporter") or shutil.which("blackbox_exporter")
AT_ONCE = 100
PATHS = (CARD_PATH.decode(), HEALTH_PATH.decode())
MIN_RATIO = 0.6
MAX_CPU_RATIO = 0.7
PATIENCE_SECONDS = 10
BARE, OTHER = "bare aiohttp", "blackbox_exporter"
FIRST, KNOWN = "ours, never seen before", "ours, known"


@dataclass(slots=True)
class Contestant:
    """A client that requests all targets of a part of the fleet, with its samples by round."""

    ask: Callable[[Sequence[int]], tuple[float, float]]
    """Ask these targets; return seconds and processor seconds."""
    cpu_us: list[float] = field(default_factory=list)
    """Per GET."""

    def sample(self, numbers: Sequence[int]) -> float:
        """Return targets per second."""
        seconds, cpu_s = self.ask(numbers)
        self.cpu_us.append(cpu_s / (len(numbers) * len(PATHS)) * 1e6)
        return len(numbers) / seconds


# --- bare -------------------------------------------------------------------------------------------------


async def ask_bare(running: RunningFleet, urls: Sequence[str]) -> tuple[float, float]:
    names = aiohttp.AsyncResolver(nameservers=[running.dns_server])
    connector = aiohttp.TCPConnector(resolver=names, limit=0, keepalive_timeout=2, ssl=our_tls())
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        left = iter(urls)

        async def work() -> None:
            for url in left:
                for path in PATHS:
                    async with session.get(f"{url}{path}") as response:
                        if not (await response.read()).startswith(b"{"):
                            raise SystemExit(f"{url} did not answer as it should")

        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        return time.perf_counter() - began_s, time.process_time() - began_cpu_s


def our_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


# --- ours -------------------------------------------------------------------------------------------------


class MeteredLedger(LocalLedger):
    """A ledger that sees when work begins, and when the last result is stored."""

    began_s = began_cpu_s = ended_s = ended_cpu_s = 0.0

    async def claim(
        self,
        worker: str,
        ttl_s: float,
        held: Mapping[int, int],
        companions: int = 0,
        standing: WitnessReport = NO_WITNESS_REPORT,
    ) -> Granted:
        """Note when the first claim is asked for."""
        if not self.began_s:
            self.began_s, self.began_cpu_s = time.perf_counter(), time.process_time()
        return await super().claim(worker, ttl_s, held, companions, standing)

    async def report(self, batches: Sequence[ShardBatch], interval_s: float) -> ReportAnswer:
        """Note when results are stored."""
        taken = await super().report(batches, interval_s)
        self.ended_s, self.ended_cpu_s = time.perf_counter(), time.process_time()
        return taken


def definition(running: RunningFleet, urls: Sequence[str]) -> ProbeDefinition:
    return ProbeDefinition.model_validate(
        {
            "name": "bench",
            "contact": "https://agent.example",
            "targets": urls,
            "ask": {"transport": False},
            # So soon that the card is asked for each time.
            "cadence": {"allow_fast_cadence": True, "card_every_seconds": 0.1},
            "limits": {"concurrency": AT_ONCE},
            "opt_out": {"robots_txt": False},
            "networks": {"allow": ["127.0.0.0/8"]},
            "resolver": {"servers": [running.dns_server]},
        }
    )


async def probe(
    running: RunningFleet, urls: Sequence[str], database: str, *, is_known: bool
) -> tuple[float, float]:
    wanted = definition(running, urls)
    async with open_local_backend(database) as home:
        await DirectoryImporter(wanted, home.lists, _read_nothing).import_inline()
        metered = await _probe_all(wanted, home)
        if is_known:
            # The names are not cached any more: another resolver looks them up.
            metered = await _probe_all(wanted, home)
        return metered.ended_s - metered.began_s, metered.ended_cpu_s - metered.began_cpu_s


async def _probe_all(wanted: ProbeDefinition, home: LocalBackend) -> MeteredLedger:
    async with open_prober(wanted) as opened:
        ledger = MeteredLedger(home.database)
        worker = ProbeWorker(ledger, opened.prober, wanted, worker_name="bench")
        await worker.run_once(time.time(), asyncio.Event())
    if worker.progress.classes != {ResultClass.OK: len(wanted.targets)}:
        raise SystemExit(f"not all are alive: {worker.progress.classes}")
    return ledger


async def _read_nothing(wanted: WantedDocument) -> Got:
    raise AssertionError(f"the targets are in the definition, not in {wanted.url}")


# --- blackbox_exporter ------------------------------------------------------------------------------------


@contextlib.contextmanager
def blackbox(directory: Path, certificate: Path) -> Iterator[tuple[int, int]]:
    """Run the exporter; yield its process and its port."""
    config = directory / "blackbox.yml"
    config.write_text(f"""modules:
  plain: {{prober: http, http: {{preferred_ip_protocol: ip4}}}}
  tls: {{prober: http, http: {{preferred_ip_protocol: ip4, tls_config: {{ca_file: "{certificate}"}}}}}}
""")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [BLACKBOX or "", f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}"]
    command.append("--log.level=error")
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
        try:
            for _ in range(PATIENCE_SECONDS * 10):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)
            yield running.pid, port
        finally:
            running.terminate()


async def ask_blackbox(running: RunningFleet, numbers: Sequence[int], scheme: str, port: int) -> float:
    """Have it ask all targets; return the seconds."""
    fleet_port = running.tls_port if scheme == "https" else running.port
    module = "tls" if scheme == "https" else "plain"
    async with aiohttp.ClientSession() as session:
        left = iter(numbers)

        async def work() -> None:
            for number in left:
                for path in PATHS:
                    target = f"{scheme}://{running.fleet.address(number)}:{fleet_port}{path}"
                    asked = {"module": module, "target": target, "hostname": running.fleet.host(number)}
                    async with session.get(f"http://127.0.0.1:{port}/probe?{urlencode(asked)}") as response:
                        if "\nprobe_success 1" not in await response.text():
                            raise SystemExit(f"{target} did not answer as it should")

        began_s = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        return time.perf_counter() - began_s


# --- in rounds --------------------------------------------------------------------------------------------


def contestants(
    running: RunningFleet, scheme: str, directory: Path, other: tuple[int, int] | None
) -> dict[str, Contestant]:
    port = running.tls_port if scheme == "https" else running.port

    def urls(numbers: Sequence[int]) -> list[str]:
        return [f"{scheme}://{running.fleet.host(number)}:{port}" for number in numbers]

    def bare(numbers: Sequence[int]) -> tuple[float, float]:
        return uvloop.run(ask_bare(running, urls(numbers)))

    def ours(numbers: Sequence[int], *, is_known: bool) -> tuple[float, float]:
        with tempfile.TemporaryDirectory(dir=directory) as name:
            database = f"sqlite:///{name}/bench.db"
            # As the command line runs it.
            return run_loop(probe(running, urls(numbers), database, is_known=is_known))

    found = {
        BARE: Contestant(bare),
        FIRST: Contestant(partial(ours, is_known=False)),
        KNOWN: Contestant(partial(ours, is_known=True)),
    }
    if other is not None:
        pid, other_port = other

        def by_other(numbers: Sequence[int]) -> tuple[float, float]:
            before_s = cpu_seconds(pid)
            seconds = uvloop.run(ask_blackbox(running, numbers, scheme, other_port))
            return seconds, cpu_seconds(pid) - before_s

        found[OTHER] = Contestant(by_other)
    return found


def show(scheme: str, asking: Mapping[str, Contestant], *, targets: int, rounds: int) -> None:
    turns = {name: iter(range(rounds + 1)) for name in asking}

    def sampler(name: str) -> Callable[[], float]:
        def sample() -> float:
            turn = next(turns[name])
            return asking[name].sample(range(turn * targets, (turn + 1) * targets))

        return sample

    rate = in_rounds({name: sampler(name) for name in asking}, rounds=rounds)
    # The first round warms up.
    cpu = Measured({name: contestant.cpu_us[1:] for name, contestant in asking.items()})
    rows = []
    for name in asking:
        row: list[Any] = [name, f"{rate.median(name):.0f}", "", "", f"{cpu.median(name):.0f}", "", ""]
        if name in {FIRST, KNOWN}:
            ratio = rate.ratio(name, BARE)
            row[2:4] = f"{ratio:.2f}", verdict(ratio, at_least=MIN_RATIO)
            if OTHER in asking:
                ratio = cpu.ratio(name, OTHER)
                row[5:7] = f"{ratio:.2f}", verdict(ratio, at_most=MAX_CPU_RATIO)
        rows.append(row)
    print_table(
        f"All alive, {scheme}: two GETs of each target, {AT_ONCE} targets at once",
        ["", "targets/s", "of the bare one", "target", "CPU µs/GET", f"x {OTHER}", "target"],
        rows,
    )


def make_certificate(directory: Path) -> Path:
    """Make a certificate for all names of the fleet, its key within."""
    key, made, both = directory / "key.pem", directory / "certificate.pem", directory / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-nodes", "-days", "2", "-subj", f"/CN=*.{ZONE}", "-addext", f"subjectAltName=DNS:*.{ZONE}"]
    command += ["-keyout", str(key), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    both.write_text(key.read_text() + made.read_text())
    return both


@contextlib.contextmanager
def on_cores_of_their_own(running: RunningFleet) -> Iterator[None]:
    """Give one core to those who ask, one to those who answer."""
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        print("there is one core only: those who ask have to share it with those who answer")
        yield
        return
    ours, theirs = sorted(before)[:2]
    os.sched_setaffinity(0, {ours})
    for pid in (running.pid, running.dns_pid):
        os.sched_setaffinity(pid, {theirs})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def main() -> None:
    targets, rounds = (500, 1) if is_quick(__doc__) else (5_000, 3)
    if BLACKBOX is None:
        print("blackbox_exporter is absent (apt-get install prometheus-blackbox-exporter)")
    with tempfile.TemporaryDirectory(prefix="lifesign-bench-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        certificate = make_certificate(directory)
        os.environ["SSL_CERT_FILE"] = str(certificate)
        fleet = TargetFleet(targets * (rounds + 1), {})
        running = stack.enter_context(running_fleet(fleet, directory, certificate))
        stack.enter_context(on_cores_of_their_own(running))
        other = stack.enter_context(blackbox(directory, certificate)) if BLACKBOX is not None else None
        for scheme in ("http", "https"):
            asking = contestants(running, scheme, directory, other)
            show(scheme, asking, targets=targets, rounds=rounds)


if __name__ == "__main__":
    main()
