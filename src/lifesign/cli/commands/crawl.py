"""Crawl of directories, continuous or once."""

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lifesign.cli.options.config_file import read_prober_config
from lifesign.cli.options.config_file import show_config as print_config
from lifesign.cli.options.credential_file import CredentialFile, with_credentials
from lifesign.cli.options.option_errors import options
from lifesign.cli.options.registry_access import PlainHttp, read_key
from lifesign.cli.output.exit_codes import ExitCode
from lifesign.client.environment_variables import KEY_VARIABLE
from lifesign.domain.net.peer_text import printable
from lifesign.errors import InvalidValue
from lifesign.filesystem.core_dumps import forbid_core_dumps
from lifesign.serving.log_output import LogFormat, logging_to
from lifesign.storage.engine.sqlite_path import sqlite_file

if TYPE_CHECKING:
    from lifesign.crawl.progress_display import ProgressDisplay
    from lifesign.crawl.run import Crawled
    from lifesign.crawl.worker_config import RegistryAddress
    from lifesign.prober.definition.models import ProbeDefinition

MAX_PROCESSES = 64

_log = logging.getLogger("lifesign.prober")

Workers = Annotated[
    int,
    typer.Option(
        "--workers",
        min=1,
        max=MAX_PROCESSES,
        metavar="COUNT",
        envvar="LIFESIGN_PROBER_WORKERS",
        help="Number of processes that probe.",
    ),
]
CrawlDatabase = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        envvar="LIFESIGN_PROBER_DATABASE",
        help=(
            "Database for the results: sqlite:///FILE or postgresql://USER@HOST/DATABASE. Without "
            "it: a file in the working directory, named after the definition: NAME.db."
        ),
    ),
]

Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        envvar="LIFESIGN_PROBER_METRICS",
        help=(
            "Address on which Prometheus metrics of the crawl are served, at /metrics, without "
            "authentication."
        ),
    ),
]

Moved = Annotated[
    bool,
    typer.Option("--moved", help="Treat a list that was read from another location before as the same list."),
]


ProberConfig = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="LIFESIGN_PROBER_CONFIG",
        metavar="FILE",
        is_eager=True,
        callback=read_prober_config,
        help="Settings file; options and environment variables override it.",
    ),
]
CrawlKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        envvar="LIFESIGN_PROBER_KEY_FILE",
        metavar="FILE",
        help=f"File with the key for the registry. Without it: the key in ${KEY_VARIABLE}.",
    ),
]


def crawl(
    context: typer.Context,
    definition: Annotated[
        Path, typer.Argument(metavar="FILE", help="Probe definition: targets, requests and interval.")
    ],
    *,
    _config: ProberConfig = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print all settings with their origin, and exit.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Check the definition and its files without probing.",
        ),
    ] = False,
    once: Annotated[
        bool,
        typer.Option("--once/--watch", help="Probe every target once and exit. Without it: continuously."),
    ] = False,
    workers: Workers = 1,
    credential: CredentialFile = None,
    database: CrawlDatabase = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="DIRECTORY",
            envvar="LIFESIGN_PROBER_REPORT",
            help="Write the census to this directory at the end; without --once also every hour.",
        ),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry",
            metavar="URL",
            envvar="LIFESIGN_PROBER_REGISTRY",
            help=(
                "Registry whose targets this command probes, as one of its probers. The results go to "
                "the registry."
            ),
        ),
    ] = None,
    key_file: CrawlKeyFile = None,
    allow_plain_http: PlainHttp = False,
    moved: Moved = False,
    metrics: Metrics = None,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            "--log-format",
            metavar="console|json",
            envvar="LIFESIGN_PROBER_LOG_FORMAT",
            help="Format of the log on standard error: text for people, or JSON.",
        ),
    ] = LogFormat.CONSOLE,
) -> int:
    """Probe all targets of a definition, either continuously, each at its own time, or only once.

    Results are stored in one SQLite file, named like the definition. It is a registry's database: the results
    decide which agents are active, unhealthy or dead, and `lifesign serve` shows them.

    With --registry any number of machines share the work: each probes its part of the targets and reports the
    results. The key needs the role prober. Machines may join and leave at any time.

    Ctrl-C ends the crawl once all results are stored. The same command continues where it stopped.

    \b
    Examples:
      lifesign crawl probes/directory.yml
      lifesign crawl probes/census.yml --once --workers 2
      lifesign crawl probes/one-agent.yml --database sqlite:////var/lib/agents.db
      lifesign crawl probes/directory.yml --check
      lifesign serve --database sqlite:///directory.db
      LIFESIGN_KEY=ahk_... lifesign crawl census.yml --once --registry https://registry.example
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    if show_config:
        return print_config(context, "prober", {})
    from lifesign.prober.definition.file import read_definition_file  # noqa: PLC0415 - takes 200 ms

    read = with_credentials(read_definition_file(definition, needs_trust=credential is not None), credential)
    place = place_of(read, database, registry, key_file, allow_plain_http=allow_plain_http)
    if metrics is not None:
        from lifesign.crawl.metrics_server import place_in  # noqa: PLC0415 - see above

        place_in(metrics)
    if report is not None:
        from lifesign.census.report_files import check_directory  # noqa: PLC0415 - see above

        check_directory(report, "--report")
    if check:
        import asyncio  # noqa: PLC0415 - takes 20 ms

        from lifesign.crawl.contact_rule import require_contact  # noqa: PLC0415 - see above
        from lifesign.crawl.directory_import import inspect_lists, opt_outs_of  # noqa: PLC0415 - see above
        from lifesign.prober.secrets.secret_reader import read_secrets  # noqa: PLC0415 - see above

        with options(contact=f"{definition}: contact"):
            asyncio.run(require_contact(read))
        opt_outs_of(read)
        read_secrets(read.credentials)
        lists = asyncio.run(inspect_lists(read))
        for name, why in lists.unread.items():
            raise InvalidValue(f"the list {name}", None, f"one that can be read ({why})")
        for text in lists.odd:
            sys.stderr.write(printable(f"{definition}: {text}") + "\n")
        sys.stdout.write(printable(f"{definition}: {read.name} is valid") + "\n")
        return 0
    with options(contact=f"{definition}: contact"):
        crawled = run_crawl(
            read,
            place,
            is_once=once,
            processes=workers,
            report=report,
            has_moved=moved,
            metrics=metrics,
            log_format=log_format,
        )
    return ended(crawled, is_once=once)


def place_of(
    definition: "ProbeDefinition",
    database: str | None,
    registry: str | None,
    key_file: Path | None,
    *,
    allow_plain_http: bool,
) -> "str | RegistryAddress":
    """Return where to store the results: a database URL or a registry, by options, definition, or default."""
    if registry is not None and database is not None:
        raise InvalidValue("--database", database, "no such option, since the registry has its own")
    url = definition.results.registry if registry is None and database is None else registry
    if url is None:
        if key_file is not None:
            raise InvalidValue("--key-file", str(key_file), "no such option without --registry")
        place = database or f"sqlite:///{definition.name}.db"
        _refuse_a_list(definition, place)
        return place
    from lifesign.crawl.worker_config import RegistryAddress  # noqa: PLC0415 - pydantic takes 60 ms

    key = read_key(key_file or definition.results.key_file)
    return RegistryAddress(url=url, key=key, allow_plain_http=allow_plain_http)


def _refuse_a_list(definition: "ProbeDefinition", place: str) -> None:
    """Refuse to store results in a file that is one of the lists. Raises InvalidValue."""
    file = sqlite_file(place)
    for source in definition.directories:
        if file is not None and source.file is not None and file.resolve() == source.file.resolve():
            expected = "another file than the list that is read (--database sqlite:///results.db)"
            raise InvalidValue("database", str(file), expected)


def run_crawl(
    definition: "ProbeDefinition",
    place: "str | RegistryAddress",
    *,
    is_once: bool,
    processes: int,
    report: Path | None = None,
    has_moved: bool = False,
    metrics: str | None = None,
    log_format: LogFormat = LogFormat.CONSOLE,
) -> "Crawled":
    """Crawl, and show the progress on standard error; `place` is the URL of a database, or a registry.

    `report` is a directory for regular census reports. `has_moved`: a list that is known there from elsewhere
    is the same one. `metrics` is where numbers are served, as `HOST:PORT`. LifesignError if it cannot
    continue.
    """
    # The URL of the database may have a password.
    forbid_core_dumps()
    # SQLAlchemy and aiohttp take 400 ms, which `--help` does not need.
    import asyncio  # noqa: PLC0415

    from lifesign.crawl.backend import open_local_backend, open_registry_backend  # noqa: PLC0415
    from lifesign.crawl.contact_rule import require_contact  # noqa: PLC0415
    from lifesign.crawl.list_identity import require_same_list  # noqa: PLC0415
    from lifesign.crawl.metric_families import crawl_families  # noqa: PLC0415
    from lifesign.crawl.metrics_server import serving_metrics  # noqa: PLC0415
    from lifesign.crawl.process import run_loop  # noqa: PLC0415
    from lifesign.crawl.progress_display import progress_on  # noqa: PLC0415
    from lifesign.crawl.run import Crawl, stopped_by_signals  # noqa: PLC0415
    from lifesign.prober.definition.unused_credentials import unused_credentials  # noqa: PLC0415
    from lifesign.prober.secrets.secret_reader import read_secrets  # noqa: PLC0415
    from lifesign.serving.log_lines import LogTo  # noqa: PLC0415

    secrets = read_secrets(definition.credentials)
    scrubber = secrets.scrubber
    wanted = None
    if report is not None:
        from lifesign.census.report_files import Report  # noqa: PLC0415

        wanted = Report(directory=report, name=definition.name, deadlines=definition.timeouts.deadlines)

    async def ran(progress: "ProgressDisplay") -> "Crawled":
        await require_contact(definition)
        stop = asyncio.Event()
        opened = (
            open_local_backend(place, wanted, is_once=is_once)
            if isinstance(place, str)
            else open_registry_backend(place, wanted)
        )
        with stopped_by_signals(stop, progress.print_line):
            async with opened as home:
                progress.print_line(f"{definition.name}: {home.text}")
                for unused in unused_credentials(definition):
                    _log.warning("%s; %s", unused.text, unused.hint)
                if not has_moved:
                    await require_same_list(definition, home.lists, home.text, is_shared=home.is_shared)
                crawl = Crawl(definition, home, progress, stop, secrets)
                async with serving_metrics(metrics, lambda: crawl_families(crawl)):
                    if is_once:
                        return await crawl.once(processes=processes)
                    return await crawl.watch(processes=processes)

    with (
        progress_on(definition.name, sys.stderr, log_format) as progress,
        logging_to(LogTo(lambda line: progress.log(scrubber.clean_text(line)), log_format.value)),
    ):
        return run_loop(ran(progress))


def ended(crawled: "Crawled", *, is_once: bool) -> ExitCode:
    """Return the exit code of a crawl, after a message on standard error if some targets were not probed."""
    if is_once and not crawled.is_done:
        sys.stderr.write("some targets were not probed: run the same command again to continue\n")
        return ExitCode.INCOMPLETE
    if crawled.failed and not crawled.probed:
        return ExitCode.FAILED
    return ExitCode.NO_INPUT if crawled.failed and is_once else ExitCode.SUCCESS
