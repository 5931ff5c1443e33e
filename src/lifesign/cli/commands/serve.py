"""Command that starts the server."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifesign.cli.options.config_file import blaming_the_source
from lifesign.cli.options.config_file import show_config as print_config
from lifesign.cli.options.duration import duration_option
from lifesign.cli.options.server_database import (
    DEFAULT_DATABASE,
    DatabaseUrl,
    ServerConfig,
    StateDir,
    adopt_command,
    same_database,
)
from lifesign.cli.output.serve_lines import log_prepared, log_ready, say_prepared, say_ready
from lifesign.dashboard import new_dashboard
from lifesign.filesystem.core_dumps import forbid_core_dumps
from lifesign.registry.errors import DatabaseMismatch
from lifesign.serving.log_output import LogFormat

if TYPE_CHECKING:
    from lifesign.registry.settings import RegistrySettings

PREFIX = "LIFESIGN_SERVER_"
"""Prefix of the variables for options."""

ShowConfig = Annotated[
    bool, typer.Option("--show-config", help="Print all settings with their origin, and exit.")
]


def _duration(name: str, words: str) -> Any:
    """Return the option of a duration; RegistrySettings has its bounds and its default."""
    return duration_option(f"--{name}", envvar=f"{PREFIX}{name.replace('-', '_').upper()}", help=words)


def _threshold(name: str, metavar: str, words: str) -> Any:
    """Return the option of a number that the registry uses for verdicts or suspensions."""
    return typer.Option(envvar=f"{PREFIX}{name}", metavar=metavar, help=words)


def serve(  # noqa: PLR0913 - each setting is an option
    context: typer.Context,
    *,
    _config: ServerConfig = None,
    show_config: ShowConfig = False,
    database: DatabaseUrl = DEFAULT_DATABASE,
    state_dir: StateDir = None,
    host: Annotated[
        str,
        typer.Option(
            envvar=f"{PREFIX}HOST", metavar="HOST", help="Address on which to listen; 0.0.0.0: all addresses."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            envvar=f"{PREFIX}PORT",
            min=0,
            max=65_535,
            metavar="PORT",
            help="Port on which to listen; 0: any free port.",
        ),
    ] = 8440,
    workers: Annotated[
        int,
        typer.Option(
            envvar=f"{PREFIX}WORKERS", min=1, max=128, metavar="COUNT", help="Number of server processes."
        ),
    ] = 1,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(
            envvar=f"{PREFIX}TLS_CERTIFICATE", metavar="FILE", help="TLS certificate with its chain, as PEM."
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            envvar=f"{PREFIX}TLS_KEY",
            metavar="FILE",
            help="Key of the TLS certificate, as PEM without a password.",
        ),
    ] = None,
    trusted_proxies: Annotated[
        str,
        typer.Option(
            envvar=f"{PREFIX}TRUSTED_PROXIES",
            metavar="NETWORK,...",
            help="Proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted, separated by commas.",
        ),
    ] = "",
    public_url: Annotated[
        str | None,
        typer.Option(
            envvar=f"{PREFIX}PUBLIC_URL", metavar="URL", help="URL under which others reach this server."
        ),
    ] = None,
    open_dashboard: Annotated[
        bool,
        typer.Option(
            "--open-dashboard",
            envvar=f"{PREFIX}OPEN_DASHBOARD",
            help="Let everyone read the dashboard without a key.",
        ),
    ] = False,
    dialects: Annotated[
        str,
        typer.Option(
            "--dialect",
            envvar=f"{PREFIX}DIALECT",
            metavar="DIALECT,...",
            help="Foreign dialects of the API to serve, separated by commas: openintent.",
        ),
    ] = "",
    sweep_seconds: Annotated[
        float | None,
        _duration("sweep-interval", "Interval at which the server looks for missed heartbeats."),
    ] = None,
    answer_seconds: Annotated[
        float | None,
        _duration(
            "database-timeout",
            "Maximum time for which a request waits for the database. After it, the answer is HTTP 503.",
        ),
    ] = None,
    requests_per_second: Annotated[
        float | None,
        typer.Option(
            envvar=f"{PREFIX}REQUESTS_PER_SECOND",
            metavar="NUMBER",
            help=(
                "Maximum number of requests per second and key, on average; each server process "
                "counts separately."
            ),
        ),
    ] = None,
    request_burst: Annotated[
        int | None,
        typer.Option(
            envvar=f"{PREFIX}REQUEST_BURST",
            metavar="COUNT",
            help=(
                "Number of requests that a key may send at once, above the average; each server "
                "process counts separately."
            ),
        ),
    ] = None,
    command_seconds: Annotated[
        float | None,
        _duration(
            "command-ttl",
            (
                "Time after which a command expires if its agent has not followed it, unless the "
                "command has its own limit."
            ),
        ),
    ] = None,
    event_retention_seconds: Annotated[
        float | None,
        _duration(
            "event-retention",
            "Age at which events move from the database to an archive file. Without it: never.",
        ),
    ] = None,
    task_retention_seconds: Annotated[
        float | None,
        _duration("task-retention", "Time for which finished tasks are kept. Without it: 90d."),
    ] = None,
    archive_dir: Annotated[
        Path | None,
        typer.Option(
            envvar=f"{PREFIX}ARCHIVE_DIR",
            metavar="DIRECTORY",
            help=(
                "Directory for archived events, of this registry only. Without it: one named after the "
                "database (`lifesign.db.archive`)."
            ),
        ),
    ] = None,
    webhook_networks: Annotated[
        str,
        typer.Option(
            envvar=f"{PREFIX}WEBHOOK_NETWORKS",
            metavar="NETWORK,...",
            help=(
                "Private networks that the server may contact for webhooks, and for proofs of "
                "opt-outs and links, separated by commas."
            ),
        ),
    ] = "",
    metrics_agents: Annotated[
        int | None,
        typer.Option(
            envvar=f"{PREFIX}METRICS_AGENTS",
            metavar="COUNT",
            help=(
                "Maximum number of unhealthy and dead agents with a series of their own in /metrics. "
                "Without it: 100."
            ),
        ),
    ] = None,
    mass_exit_cadence_seconds: Annotated[
        float | None,
        _duration(
            "mass-exit-cadence",
            "Length of a cadence, the period in which the server counts the agents that fall silent.",
        ),
    ] = None,
    mass_exit_min_exits: Annotated[
        int | None,
        _threshold(
            "MASS_EXIT_MIN_EXITS",
            "COUNT",
            "A mass exit, which suspends verdicts, needs more than COUNT silent agents in a cadence.",
        ),
    ] = None,
    mass_exit_factor: Annotated[
        float | None,
        _threshold(
            "MASS_EXIT_FACTOR",
            "FACTOR",
            (
                "A mass exit, which suspends verdicts, needs more than FACTOR times the usual number "
                "of silent agents."
            ),
        ),
    ] = None,
    mass_exit_end_factor: Annotated[
        float | None,
        _threshold(
            "MASS_EXIT_END_FACTOR",
            "FACTOR",
            (
                "A cadence is quiet if fewer agents wait for a verdict than the larger of "
                "--mass-exit-min-exits and FACTOR times the usual number."
            ),
        ),
    ] = None,
    mass_exit_quiet_cadences: Annotated[
        int | None,
        _threshold(
            "MASS_EXIT_QUIET_CADENCES",
            "COUNT",
            "A suspension ends after COUNT cadences in a row in which few agents are silent.",
        ),
    ] = None,
    mass_exit_max_suspension_seconds: Annotated[
        float | None,
        _duration(
            "mass-exit-max-suspension",
            "Maximum duration of a suspension. After it, silent agents can become unhealthy or dead.",
        ),
    ] = None,
    mass_exit_baseline_cadences: Annotated[
        int | None,
        _threshold(
            "MASS_EXIT_BASELINE_CADENCES",
            "COUNT",
            "The usual number of silent agents is the mean of this number of past cadences.",
        ),
    ] = None,
    mass_exit_proven_seconds: Annotated[
        float | None,
        _duration(
            "mass-exit-min-uptime",
            "An agent counts towards a mass exit only if it gave liveness signals for this time.",
        ),
    ] = None,
    mass_silence_expected_seconds: Annotated[
        float | None,
        _duration(
            "mass-silence-lookback",
            "Only addresses that answered within this time count when the server looks for a mass silence.",
        ),
    ] = None,
    mass_silence_together_seconds: Annotated[
        float | None,
        _duration(
            "mass-silence-window",
            (
                "A mass silence needs addresses whose last answers are at most this far apart, or two probe "
                "intervals if these are longer."
            ),
        ),
    ] = None,
    witness_seconds: Annotated[
        float | None,
        _duration(
            "witness-interval",
            (
                "Minimum time between two requests to a target as a witness, which shows that a "
                "prober's network works."
            ),
        ),
    ] = None,
    clock_offset_seconds: Annotated[
        float | None,
        _duration(
            "max-clock-skew",
            "Report a prober whose wall clock differs from the database's by more than this.",
        ),
    ] = None,
    watch_seconds: Annotated[
        float | None,
        _duration(
            "watch-interval",
            (
                "Interval at which the server counts silent network classes, and agents without "
                "recent evidence."
            ),
        ),
    ] = None,
    evidence_lost_seconds: Annotated[
        float | None,
        _duration(
            "evidence-lost-after",
            "Log monitor.evidence_lost if agents have had no recent evidence for this time.",
        ),
    ] = None,
    prober_workers: Annotated[
        int | None,
        _threshold(
            "PROBER_WORKERS",
            "COUNT",
            "Maximum number of workers that may probe with one key, unless the key has its own limit.",
        ),
    ] = None,
    open_metrics: Annotated[
        bool,
        typer.Option(
            "--open-metrics",
            envvar=f"{PREFIX}OPEN_METRICS",
            help="Show /metrics without a key.",
        ),
    ] = False,
    access_log: Annotated[
        bool, typer.Option("--access-log", envvar=f"{PREFIX}ACCESS_LOG", help="Log every request.")
    ] = False,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            "--log-format",
            envvar=f"{PREFIX}LOG_FORMAT",
            metavar="console|json",
            help="Format of the log: text for people, or JSON.",
        ),
    ] = LogFormat.CONSOLE,
) -> int:
    """Run the registry: agents register, send heartbeats and hold leases; people use the dashboard.

    Without options it stores everything in lifesign.db in the working directory, and serves only this
    machine. An empty database is set up; one of an older version needs `lifesign migrate`.

    The first admin key is shown once, on this terminal. Without a terminal none is created: create it with
    `lifesign keys create --role admin`.

    On SIGTERM or Ctrl-C the server answers accepted requests, then ends. SIGHUP does the same to a single
    process; with --workers it replaces the processes one after the other. The log goes to standard error.

    \b
    Examples:
      lifesign serve
      lifesign serve --host 0.0.0.0 --tls-certificate cert.pem --tls-key key.pem
      LIFESIGN_SERVER_DATABASE=postgresql://ah@db/ah lifesign serve --workers 4
      lifesign serve --config lifesign.toml --show-config
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    from lifesign.registry.database_identity.marker_file import state_directory  # noqa: PLC0415
    from lifesign.registry.run_server import TRUSTS_EVERYBODY, Listening, check, run_server  # noqa: PLC0415 - takes 500 ms
    from lifesign.serving.listening_socket import check_address  # noqa: PLC0415 - as below

    with blaming_the_source(context, "server"):
        settings = _settings(
            database=database,
            state_dir=state_dir,
            public_url=public_url,
            open_dashboard=open_dashboard,
            dialects=listed(dialects),
            trusted_proxies=listed(trusted_proxies),
            webhook_networks=listed(webhook_networks),
            sweep_seconds=sweep_seconds,
            answer_seconds=answer_seconds,
            requests_per_second=requests_per_second,
            request_burst=request_burst,
            command_seconds=command_seconds,
            event_retention_seconds=event_retention_seconds,
            task_retention_seconds=task_retention_seconds,
            archive_dir=archive_dir,
            metrics_agents=metrics_agents,
            open_metrics=open_metrics,
            mass_exit_cadence_seconds=mass_exit_cadence_seconds,
            mass_exit_min_exits=mass_exit_min_exits,
            mass_exit_factor=mass_exit_factor,
            mass_exit_end_factor=mass_exit_end_factor,
            mass_exit_quiet_cadences=mass_exit_quiet_cadences,
            mass_exit_max_suspension_seconds=mass_exit_max_suspension_seconds,
            mass_exit_baseline_cadences=mass_exit_baseline_cadences,
            mass_exit_proven_seconds=mass_exit_proven_seconds,
            mass_silence_expected_seconds=mass_silence_expected_seconds,
            mass_silence_together_seconds=mass_silence_together_seconds,
            witness_seconds=witness_seconds,
            clock_offset_seconds=clock_offset_seconds,
            watch_seconds=watch_seconds,
            evidence_lost_seconds=evidence_lost_seconds,
            prober_workers=prober_workers,
        )
        listening = Listening(
            host=host,
            port=port,
            workers=workers,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            access_log=access_log,
            log_format=log_format.value,
        )
        check(settings, listening)
    if show_config:
        check_address(host, port)
        if settings.trusts_everybody:
            sys.stderr.write(f"lifesign: {TRUSTS_EVERYBODY}\n")
        known = {name: field.default for name, field in type(settings).model_fields.items()}
        known["state_dir"] = state_directory(None)
        return print_config(context, "server", known)
    is_for_programs = log_format is LogFormat.JSON
    say_with_database = partial(say_prepared, same=same_database(context))
    forbid_core_dumps()
    try:
        return run_server(
            settings,
            listening,
            face=new_dashboard,
            may_show_key=sys.stdout.isatty(),
            say_prepared=log_prepared if is_for_programs else say_with_database,
            say_ready=log_ready if is_for_programs else say_ready,
        )
    except DatabaseMismatch as error:
        error.hint = (
            "restore the right database, or a backup. To accept this database, run: "
            f"{adopt_command(context)} (it ends all leases and raises the epoch)"
        )
        raise


def _settings(**given: object) -> "RegistrySettings":
    """Return the server's settings; absent ones keep their defaults."""
    from lifesign.registry.settings import RegistrySettings  # noqa: PLC0415 - pydantic takes 60 ms

    return RegistrySettings.read(**{name: value for name, value in given.items() if value is not None})


def listed(text: str) -> tuple[str, ...]:
    """Return the parts of a text between commas, without surrounding spaces and without empty parts."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
