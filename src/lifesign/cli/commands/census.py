"""Census of a list: the share of agents that are alive."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from lifesign.cli.commands.crawl import (
    Moved,
    Workers,
    ended,
    place_of,
    run_crawl,
)
from lifesign.cli.commands.probe import KINDS, Timeout, check_kind
from lifesign.cli.options.credential_file import CredentialFile, with_credentials
from lifesign.cli.options.duration import format_duration
from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.option_errors import options
from lifesign.cli.options.registry_access import KeyFile, PlainHttp, read_key
from lifesign.cli.options.server_database import run_in_transaction
from lifesign.cli.output.broken_pipe import ignore_broken_pipe
from lifesign.cli.output.exit_codes import ExitCode
from lifesign.cli.output.table import write_json
from lifesign.client.environment_variables import URL_VARIABLE
from lifesign.domain.net.allowed_addresses import without_password
from lifesign.domain.net.peer_text import printable
from lifesign.errors import InvalidValue
from lifesign.storage.engine.sqlite_path import sqlite_file

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifesign.census.document import Census
    from lifesign.client import RegistryClient
    from lifesign.crawl.worker_config import RegistryAddress
    from lifesign.prober.definition.models import ProbeDefinition

FORMATS: Final = ("md", "csv", "html")
SQLITE_MAGIC: Final = b"SQLite format 3\0"

T = TypeVar("T")


def census(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|URL",
            help="List of URLs (a file or a URL), probe definition, or database of an earlier crawl.",
            show_default=False,
        ),
    ] = None,
    *,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="md|csv|html", help="Format of the report. Without it: md."),
    ] = None,
    as_json: AsJson = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIRECTORY",
            help="Write census.md, .json, .csv, .html and targets.csv to this directory.",
        ),
    ] = None,
    no_crawl: Annotated[
        bool, typer.Option("--no-crawl", help="Report the stored results without probing.")
    ] = False,
    contact: Annotated[
        str | None,
        typer.Option(
            "--contact",
            metavar="CONTACT",
            help=(
                "If the source is a list: your address for the operators of the agents, mailto:...; "
                "required if an agent is public."
            ),
        ),
    ] = None,
    allow_network: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-network",
            metavar="NETWORK",
            help=("If the source is a list: private network that the prober may contact; may be repeated."),
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar=KINDS,
            help=(
                "If the source is a list: kind of the entries to probe. Entries without a kind count "
                "as this kind."
            ),
        ),
    ] = None,
    timeout_seconds: Timeout = None,
    credential: CredentialFile = None,
    workers: Workers = 1,
    database: Annotated[
        str | None,
        typer.Option(
            "--database",
            metavar="URL",
            help=(
                "Database for the results. Without it: a file in the working directory, named after "
                "the source: NAME.db."
            ),
        ),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry",
            metavar="URL",
            help=f"Registry for the results, whose census is reported. Without a source: ${URL_VARIABLE}.",
        ),
    ] = None,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
    moved: Moved = False,
) -> int:
    """Probe every agent of a list once, and report the share that is alive.

    The report has shares by result, layer, platform and protocol generation. It also compares the census with
    earlier ones of the same list, and marks those of other lists. Agents that could not be probed, and those
    that were never probed, are separate from those that are down.

    A list that is named here is applied even if most of its earlier entries are missing. Each request must
    end within 20 s, and its answer must begin within 10 s, unless you pass --timeout. Progress goes to
    standard error, the report to standard output.

    \b
    Examples:
      lifesign census urls.txt --contact mailto:you@example.org
      lifesign census https://directory.example/agents.json --contact mailto:you@example.org
      lifesign census agents.txt --allow-network 10.0.0.0/8 --timeout 5s --output report
      lifesign census mcp-servers.txt --kind mcp --contact mailto:you@example.org
      lifesign census agents.txt --credential credentials.yml --contact mailto:you@example.org
      lifesign census probes/census.yml --workers 2 --format html > census.html
      lifesign census census.db --json | jq .alive_ratio
      LIFESIGN_KEY=ahk_... lifesign census --registry https://registry.example

    \b
    After exit code 1 or 4, the same command continues with the remaining agents.

    \b
    The JSON is described by schemas/census.schema.json.
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    if form not in {None, *FORMATS}:
        raise InvalidValue("--format", form, f"one of {', '.join(FORMATS)}")
    if form is not None and as_json:
        raise InvalidValue("--format", form, "only one of --format and --json")
    if output is not None:
        from lifesign.census.report_files import check_directory  # noqa: PLC0415 - pydantic takes 60 ms

        check_directory(output, "--output")
    known = None if source is None else _database(source)
    if known is not None and registry is not None:
        raise InvalidValue("--registry", registry, "no such option, since a database is named")
    if source is None or known is not None:
        _refuse_probe_options(timeout_seconds, credential, kind)
        # A list or a definition is counted on its own, unless a registry is named with it.
        place = known or _registry(
            registry or os.environ.get(URL_VARIABLE), key_file, allow_plain_http=allow_plain_http
        )
        _write(_read_census(place, None), place, form, output, as_json=as_json)
        return 0
    code = ExitCode.SUCCESS
    definition = _definition(
        source, contact, allow_network or [], timeout_seconds, kind, needs_trust=credential is not None
    )
    definition = with_credentials(definition, credential)
    place = place_of(definition, database, registry, key_file, allow_plain_http=allow_plain_http)
    if not no_crawl:
        is_definition = source.endswith((".yml", ".yaml"))
        with options(contact=f"{source}: contact" if is_definition else "--contact"):
            crawled = run_crawl(definition, place, is_once=True, processes=workers, has_moved=moved)
        code = ended(crawled, is_once=True)
        if code is ExitCode.FAILED or (code is ExitCode.INCOMPLETE and not _is_there(place)):
            return code
    elif isinstance(place, str) and not moved:
        _require_same_list(definition, place)
    taken = _read_census(place, definition.name)
    with ignore_broken_pipe():
        _write(taken, place, form, output, as_json=as_json)
    return code


def _refuse_probe_options(timeout_seconds: float | None, credential: Path | None, kind: str | None) -> None:
    """Refuse options that have no meaning without a probe. Raises InvalidValue."""
    expected = "no such option, since nothing is probed"
    if timeout_seconds is not None:
        raise InvalidValue("--timeout", format_duration(timeout_seconds), expected)
    if credential is not None:
        raise InvalidValue("--credential", str(credential), expected)
    if kind is not None:
        raise InvalidValue("--kind", kind, expected)


def _registry(url: str | None, key_file: Path | None, *, allow_plain_http: bool) -> "RegistryAddress":
    """Return the registry that is counted if nothing else is named."""
    if url is None:
        raise InvalidValue(
            "FILE|URL", None, f"a list, a definition, a database, --registry or ${URL_VARIABLE}"
        )
    from lifesign.crawl.worker_config import RegistryAddress  # noqa: PLC0415 - pydantic takes 60 ms

    return RegistryAddress(url=url, key=read_key(key_file), allow_plain_http=allow_plain_http)


def _database(source: str) -> str | None:
    """Return the URL of the named database; None if the argument is something else.

    InvalidValue for a database that cannot be read, which must not be mistaken for a list.
    """
    if source.startswith(("sqlite:", "postgresql:", "postgres:")):
        return source
    try:
        # Opening a pipe would block until another process writes to it.
        if not Path(source).is_file():
            return None
        with Path(source).open("rb") as file:
            is_database = file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except PermissionError as error:
        raise InvalidValue("FILE|URL", source, f"a file that can be read ({error.strerror})") from None
    except OSError:
        return None
    return f"sqlite:///{source}" if is_database else None


def _is_there(place: "str | RegistryAddress") -> bool:
    """Return whether there are results: a crawl that ended before its list was read leaves no file."""
    file = sqlite_file(place) if isinstance(place, str) else None
    return file is None or file.exists()


def _definition(
    source: str,
    contact: str | None,
    networks: list[str],
    timeout_seconds: float | None,
    kind: str | None,
    *,
    needs_trust: bool,
) -> "ProbeDefinition":
    """Return the definition to probe: that of a file, or one for a list."""
    from lifesign.prober.definition.file import read_definition_file, unreadable  # noqa: PLC0415
    from lifesign.prober.definition.models import ProbeDefinition  # noqa: PLC0415 - takes 200 ms

    check_kind(kind)
    if source.endswith((".yml", ".yaml")):
        given = {
            "--contact": contact,
            "--allow-network": networks,
            "--timeout": timeout_seconds,
            "--kind": kind,
        }
        for option, value in given.items():
            if value not in (None, []):
                expected = (
                    f"no such option, since {source} is read as a probe definition (every .yml and "
                    ".yaml file is), which has this setting itself; a list is a text, CSV, JSON or "
                    "JSON Lines file"
                )
                raise InvalidValue(option, "given", expected)
        return read_definition_file(Path(source), needs_trust=needs_trust)
    if "://" not in source and (why := unreadable(Path(source)) if source else "nothing was named"):
        shown = without_password(source)
        raise InvalidValue("FILE|URL", shown, f"a file that can be read, a URL, or a database ({why})")
    with options(contact="--contact", network="--allow-network"):
        return ProbeDefinition.for_directory(
            source, contact=contact, networks=networks, total_seconds=timeout_seconds, kind=kind
        )


def _require_same_list(definition: "ProbeDefinition", place: str) -> None:
    """Refuse a report about one list under the name of another. Raises InvalidValue."""
    from lifesign.crawl.list_identity import require_same_list  # noqa: PLC0415
    from lifesign.crawl.local_registry import LocalDirectories, run_locally  # noqa: PLC0415
    from lifesign.domain.access.permissions import Role  # noqa: PLC0415 - pydantic takes 60 ms, SQLAlchemy 150

    text = f"database {place}"
    run_locally(
        place, Role.READER, lambda local: require_same_list(definition, LocalDirectories(local), text)
    )


def _read_census(place: "str | RegistryAddress", name: str | None) -> "Census":
    """Take the census of a database or a registry. InvalidValue without a database."""
    import asyncio  # noqa: PLC0415 - see below
    from functools import partial  # noqa: PLC0415

    from lifesign.census.registry_counts import census_at, census_of  # noqa: PLC0415 - takes 400 ms
    from lifesign.census.report_files import titled  # noqa: PLC0415

    if not isinstance(place, str):
        taken = asyncio.run(_query(place, partial(census_at, name=name)))
        return titled(taken, place.url)
    from lifesign.storage.engine import schema_version  # noqa: PLC0415 - SQLAlchemy takes 150 ms

    # An older database gets the advice to migrate, instead of an error about its tables.
    run_in_transaction(place, schema_version.check, is_write=False)
    taken = run_in_transaction(place, partial(census_of, name=name), is_write=False)
    file = sqlite_file(place)
    return titled(taken, place.rpartition("/")[2] if file is None else file.stem)


async def _query(place: "RegistryAddress", question: "Callable[[RegistryClient], Awaitable[T]]") -> T:
    from lifesign.crawl.process import registry_client  # noqa: PLC0415 - loaded by now

    async with registry_client(place) as client:
        return await question(client)


def _write(
    taken: "Census",
    place: "str | RegistryAddress",
    form: str | None,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print the report, or write it and all targets into files and name them; JSON is always printed."""
    from lifesign.census.report_files import FORMS  # noqa: PLC0415 - loaded by now
    from lifesign.census.report_tables import headline  # noqa: PLC0415

    files = [] if output is None else _written(taken, place, output)
    if as_json:
        write_json(sys.stdout, taken.model_dump(mode="json"))
    elif output is None:
        sys.stdout.write(FORMS[form or "md"](taken))
    else:
        sys.stdout.write("".join(f"{printable(str(file))}\n" for file in files))
        sys.stdout.write(headline(taken) + "\n")


def _written(taken: "Census", place: "str | RegistryAddress", output: Path) -> list[Path]:
    """Write the report, and return its files."""
    import asyncio  # noqa: PLC0415 - loaded by now

    from lifesign.census.report_files import write_report  # noqa: PLC0415
    from lifesign.crawl.local_registry import LocalTargets, run_locally  # noqa: PLC0415
    from lifesign.domain.access.permissions import Role  # noqa: PLC0415

    if isinstance(place, str):
        return run_locally(place, Role.READER, lambda local: write_report(taken, LocalTargets(local), output))
    return asyncio.run(_query(place, lambda client: write_report(taken, client.targets, output)))
