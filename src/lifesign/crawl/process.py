"""One process of a crawl, with its source of work and its reports.

It probes its share of the targets until it is stopped, or a census is complete. Twice a second it sends its
progress to the process that started it, and every line of its log; if that process is gone, it ends too.
"""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Final, TypeVar

from lifesign.client import RegistryClient
from lifesign.crawl.pipe_reader import add_pipe_reader
from lifesign.crawl.prober_assembly import open_prober
from lifesign.crawl.status_sender import StatusSender
from lifesign.crawl.token_pipe import TokenPipe
from lifesign.crawl.worker_config import (
    EXIT_SHARDS_WITHHELD,
    EXIT_UNFINISHED,
    RegistryAddress,
    WorkerConfig,
    WorkerStatus,
)
from lifesign.errors import LifesignError
from lifesign.filesystem.core_dumps import forbid_core_dumps
from lifesign.loopback.listeners import IN_THIS_PROCESS
from lifesign.prober.errors import PassDelayed
from lifesign.prober.evidence.filed_ledger import FiledLedger
from lifesign.prober.evidence.observation_file import ResultsFile
from lifesign.prober.evidence.results_writer import ResultsWriter
from lifesign.prober.registry_exchange.ledger import Ledger
from lifesign.prober.registry_exchange.registry_ledger import RegistryLedger
from lifesign.prober.worker.main_loop import ProbeWorker
from lifesign.prober.worker.outbox import MAX_QUEUED_SECONDS
from lifesign.serving.log_lines import LogTo
from lifesign.serving.log_output import logging_to

REPORT_SECONDS: Final = 0.5
DATABASE_PATIENCE_SECONDS: Final = 120.0
"""Time that a census waits for its own database: a full disk does not empty itself."""
GARBAGE_THRESHOLDS: Final = (50_000, 20, 50)
"""Arguments of `gc.set_threshold`. A probe creates hundreds of objects and leaves no cycles: a collection
after every 700, the default, takes a tenth of a crawl's time. A waiting batch of results, which is released
at once, has tens of thousands.
"""

T = TypeVar("T")


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop, that of uvloop if it is installed; return its result."""
    make_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        import uvloop  # noqa: PLC0415 - absent elsewhere than on CPython

        make_loop = uvloop.new_event_loop
    usual = gc.get_threshold()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            return runner.run(main)
    finally:
        gc.set_threshold(*usual)


async def run_worker(
    config: WorkerConfig,
    stop: asyncio.Event,
    report: Callable[[WorkerStatus], None],
    token_pipe: TokenPipe | None = None,
) -> bool:
    """Probe until `stop` is set or a census is complete; False if a census was stopped before its end.

    `token_pipe`: leads to the process that requests tokens; None: this process requests them.
    PassDelayed if a census can store nothing for too long.
    """
    definition = config.definition
    async with (
        open_ledger(config) as ledger,
        open_prober(
            definition,
            is_public_allowed=definition.has_contact,
            secrets=config.secrets,
            request_token=None if token_pipe is None else token_pipe.request,
        ) as opened,
    ):
        if token_pipe is not None:
            token_pipe.pass_tokens_to(opened.credentials)
        worker = ProbeWorker(
            ledger,
            opened.prober,
            config.definition,
            worker_name=config.worker,
            asks=opened.witnesses,
            unanswered=lambda: opened.resolver.faults,
            companions=config.companions,
            credentials=opened.credentials,
            patience_s=DATABASE_PATIENCE_SECONDS if config.registry is None else MAX_QUEUED_SECONDS,
        )
        reporting = asyncio.create_task(_report_progress(worker, report))
        try:
            if config.since_s is None:
                await worker.run(stop)
                return True
            return await worker.run_once(config.since_s, stop)
        finally:
            reporting.cancel()
            report(_status_of(worker))


@asynccontextmanager
async def open_ledger(config: WorkerConfig) -> AsyncIterator[Ledger]:
    """Open the ledger, which provides targets and stores results; it is closed at the end of the block."""
    async with AsyncExitStack() as stack:
        ledger: Ledger
        if config.registry is not None:
            ledger = RegistryLedger(await stack.enter_async_context(registry_client(config.registry)))
        else:
            # A worker of a registry needs no database, and starts in half the time without.
            from lifesign.crawl.local_ledger import LocalLedger  # noqa: PLC0415
            from lifesign.storage.engine.database import open_database  # noqa: PLC0415

            database = open_database(config.database or "")
            stack.push_async_callback(database.close)
            ledger = LocalLedger(database)
        jsonl = config.definition.results.jsonl
        if jsonl is not None:
            writer = ResultsWriter(ResultsFile(jsonl))
            stack.push_async_callback(asyncio.to_thread, writer.close)
            ledger = FiledLedger(ledger, writer)
        yield ledger


def registry_client(place: RegistryAddress) -> RegistryClient:
    """Return a client of the registry in the configuration."""
    return RegistryClient(place.url, key=place.key, allow_plain_http=place.allow_plain_http)


async def _report_progress(worker: ProbeWorker, report: Callable[[WorkerStatus], None]) -> None:
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        report(_status_of(worker))


def _status_of(worker: ProbeWorker) -> WorkerStatus:
    return WorkerStatus(worker.progress, first_users=IN_THIS_PROCESS.first_users)


def run_worker_process(config: WorkerConfig, pipe: Connection, tokens: Connection | None = None) -> None:
    """Run one process of a crawl to its exit; called in a process of its own.

    `tokens`: pipe to the process that requests tokens, if there are credentials that need them.
    It exits with 0 if all is done, with EXIT_UNFINISHED if it was stopped before, with EXIT_SHARDS_WITHHELD
    if it could store no result for too long, and with 1 and a log line if it cannot continue. SIGTERM stops
    it. Ctrl-C, and the end of the terminal, are handled by its parent.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if config.definition.credentials:
        # Tokens come later.
        forbid_core_dumps()
    scrubber, sender = config.secrets.scrubber, StatusSender(pipe)

    def log(line: str) -> None:
        sender.send(WorkerStatus(logged=scrubber.clean_text(line)))

    try:
        with logging_to(LogTo(log, config.log_format.value)):
            code = _exit_code(config, pipe, sender, tokens)
    finally:
        sender.finish()
    sys.exit(code)


def _exit_code(
    config: WorkerConfig, pipe: Connection, sender: StatusSender, tokens: Connection | None
) -> int:
    try:
        is_done = run_loop(_run_until_stopped(config, pipe, sender, tokens))
    except PassDelayed as error:
        sender.send(WorkerStatus(withheld=(error.why, error.seconds)))
        return EXIT_SHARDS_WITHHELD
    except LifesignError as error:
        sender.send(WorkerStatus(line=str(error)))
        return 1
    except BaseException:
        logging.getLogger("lifesign.prober").exception("a process of the crawl ended by a defect")
        return 1
    return 0 if is_done else EXIT_UNFINISHED


async def _run_until_stopped(
    config: WorkerConfig, pipe: Connection, sender: StatusSender, tokens: Connection | None
) -> bool:
    """Probe until SIGTERM, or until the other end of the pipe is closed."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    # The parent never writes: the pipe becomes readable when the parent is gone.
    add_pipe_reader(loop, pipe, stop.set)

    token_pipe = None if tokens is None else TokenPipe(tokens)
    try:
        return await run_worker(config, stop, sender.send_progress, token_pipe)
    finally:
        if token_pipe is not None:
            token_pipe.close()
        loop.remove_reader(pipe.fileno())
        loop.remove_signal_handler(signal.SIGTERM)
