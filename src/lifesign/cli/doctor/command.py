"""Command that checks a set-up and names remedies."""

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lifesign.cli.commands.serve import listed
from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.registry_access import KeyFile
from lifesign.cli.options.server_database import DEFAULT_DATABASE, DatabaseUrl, ServerConfig, StateDir
from lifesign.cli.output.broken_pipe import ignore_broken_pipe
from lifesign.cli.output.exit_codes import ExitCode
from lifesign.cli.output.table import write_json
from lifesign.cli.output.terminal import Colour, PageLine, has_colours, write_page
from lifesign.client.environment_variables import URL_VARIABLE

if TYPE_CHECKING:
    from lifesign.cli.doctor.check_result import CheckResult

_COLOURS = {"ok": Colour.GREEN, "warning": Colour.YELLOW, "fault": Colour.RED, "skipped": Colour.FAINT}


def doctor(
    *,
    _config: ServerConfig = None,
    database: DatabaseUrl = DEFAULT_DATABASE,
    state_dir: StateDir = None,
    host: Annotated[
        str,
        typer.Option(
            envvar="LIFESIGN_SERVER_HOST", metavar="HOST", help="Address on which a server would listen."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            envvar="LIFESIGN_SERVER_PORT",
            min=1,
            max=65_535,
            metavar="PORT",
            help="Port on which a server would listen.",
        ),
    ] = 8440,
    archive_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="LIFESIGN_SERVER_ARCHIVE_DIR",
            metavar="DIRECTORY",
            help="Directory in which a server would store archived events.",
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(
            envvar="LIFESIGN_SERVER_TLS_CERTIFICATE",
            metavar="FILE",
            help="TLS certificate with its chain, as PEM.",
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            envvar="LIFESIGN_SERVER_TLS_KEY", metavar="FILE", help="Key of the TLS certificate, as PEM."
        ),
    ] = None,
    trusted_proxies: Annotated[
        str,
        typer.Option(
            envvar="LIFESIGN_SERVER_TRUSTED_PROXIES",
            metavar="NETWORK,...",
            help="Proxies that a server would trust, separated by commas.",
        ),
    ] = "",
    registry: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar=URL_VARIABLE,
            help="URL of the registry to check. Without it, no registry is checked.",
        ),
    ] = None,
    key_file: KeyFile = None,
    definitions: Annotated[
        list[Path] | None,
        typer.Option("--definition", metavar="FILE", help="Probe definition to check; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Check a set-up: database, clocks, network, keys, certificates, definitions, disk.

    The command changes nothing. It sends requests only to the named registry and to the canaries of the
    definitions. A fault prevents operation now, a warning may do so later. Each fault and each warning names
    a remedy.

    \b
    Examples:
      lifesign doctor
      lifesign doctor --database sqlite:////var/lib/lifesign/registry.db
      lifesign doctor --registry https://registry.example --key-file reader.key
      lifesign doctor --definition probes/census.yml --json
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    # The imports take 300 ms.
    from lifesign.cli.doctor import definition_checks, machine_checks, server_checks  # noqa: PLC0415
    from lifesign.cli.doctor.database_checks import of_the_database  # noqa: PLC0415
    from lifesign.cli.doctor.registry_checks import of_a_registry  # noqa: PLC0415

    # Findings are reported once, below.
    logging.getLogger("lifesign").addHandler(logging.NullHandler())
    findings = [
        *machine_checks.of_the_program(),
        *of_the_database(database, server_checks.listener_text(host, port), state_dir),
        *server_checks.of_the_archives(archive_dir),
        *server_checks.of_the_server(host, port, tls_certificate, tls_key),
        *server_checks.of_the_proxies(listed(trusted_proxies)),
        *machine_checks.of_the_network(),
        *of_a_registry(registry, key_file),
        *(found for file in definitions or () for found in definition_checks.of_a_definition(file)),
    ]
    is_well = not any(finding.verdict == "fault" for finding in findings)
    with ignore_broken_pipe():
        if as_json:
            write_json(
                sys.stdout, {"is_well": is_well, "findings": [asdict(finding) for finding in findings]}
            )
        else:
            write_page(sys.stdout, _page(findings), colours=has_colours(sys.stdout))
    return ExitCode.SUCCESS if is_well else ExitCode.FAILED


def _page(findings: "Sequence[CheckResult]") -> Iterator[PageLine]:
    for finding in findings:
        yield PageLine(finding.verdict, f"{finding.about}: {finding.summary}", _COLOURS[finding.verdict])
        if finding.advice:
            yield PageLine(" ", f"  {finding.advice}")
    counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in _COLOURS}
    yield PageLine("", ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count))
