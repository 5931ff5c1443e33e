"""Commands about directories, and lists that have shrunk."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.registry_access import DEFAULT_URL, KeyFile, PlainHttp, RegistryUrl, ask
from lifesign.cli.output.agent_page import time_text
from lifesign.cli.output.table import write_json, write_table
from lifesign.domain.net.peer_text import printable
from lifesign.domain.text.counts import pluralize

if TYPE_CHECKING:
    from lifesign.client.registry_directories import RegistryDirectories
    from lifesign.crawl.local_registry import LocalDirectories
    from lifesign.domain.models.directories import DirectoryRecord, ImportRecord

T = TypeVar("T")

LocalDatabase = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="Database of a crawl, such as sqlite:///census.db, instead of a registry.",
    ),
]
DirectoryName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the directory.")]

directories = typer.Typer(
    name="directories",
    help="List and remove directories (lists of agents), and confirm lists that have shrunk.",
    rich_markup_mode=None,
    no_args_is_help=False,
)


@directories.command("list")
def list_directories(
    *,
    as_json: AsJson = False,
    database: LocalDatabase = None,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """List directories with their number of targets, their last import, and suspended imports.

    \b
    Examples:
      lifesign directories list
      lifesign directories list --database sqlite:///census.db
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    found = _ask(
        lambda lists: lists.all(),
        is_write=False,
        database=database,
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )
    if as_json:
        shown = [record.model_dump(mode="json", exclude_none=True) for record in found]
        write_json(sys.stdout, {"directories": shown})
    elif not found:
        sys.stdout.write("no directory has been read yet\n")
    else:
        write_table(sys.stdout, ("DIRECTORY", "TARGETS", "READ", "FROM", "SUSPENDED"), map(_row, found))


@directories.command("confirm")
def confirm_directory(
    name: DirectoryName,
    *,
    database: LocalDatabase = None,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Stop probing the missing targets of a directory that lost more than half of its entries at once.

    \b
    Examples:
      lifesign directories confirm example.org
      lifesign directories confirm agents.txt --database sqlite:///census.db
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    record = _ask(
        lambda lists: _confirm(lists, name),
        database=database,
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )
    _write_change(name, record, as_json=as_json)


@directories.command("remove")
def remove_directory(
    name: DirectoryName,
    *,
    database: LocalDatabase = None,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Remove a directory: targets that no other directory lists are no longer probed.

    A crawl whose definition names it reads it again.

    \b
    Examples:
      lifesign directories remove agents.txt --database sqlite:///census.db
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    record = _ask(
        lambda lists: _remove(lists, name),
        database=database,
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )
    _write_change(name, record, as_json=as_json)


def _ask(
    function: "Callable[[LocalDirectories | RegistryDirectories], Awaitable[T]]",
    *,
    is_write: bool = True,
    database: str | None,
    registry: str,
    key_file: Path | None,
    allow_plain_http: bool,
) -> T:
    """Call the database of a crawl if one is named, else the registry.

    End with an exit code after a refusal.
    """
    if database is None:
        return ask(
            lambda client: function(client.directories),
            registry=registry,
            key_file=key_file,
            allow_plain_http=allow_plain_http,
        )
    from lifesign.crawl.local_registry import LocalDirectories, run_locally  # noqa: PLC0415
    from lifesign.domain.access.permissions import Role  # noqa: PLC0415 - pydantic takes 60 ms, SQLAlchemy 150

    role = Role.ADMIN if is_write else Role.READER
    return run_locally(database, role, lambda local: function(LocalDirectories(local)))


async def _confirm(lists: "LocalDirectories | RegistryDirectories", name: str) -> "ImportRecord":
    record = await lists.confirm(name)
    while record.is_under_way:
        record = await lists.apply(name, record.import_id, pages=record.pages)
    return record


async def _remove(lists: "LocalDirectories | RegistryDirectories", name: str) -> "ImportRecord":
    from uuid import uuid4  # noqa: PLC0415 - asked for by this command alone

    from lifesign.domain.models.directories import ImportPageRequest  # noqa: PLC0415 - pydantic takes 60 ms
    from lifesign.errors import InvalidValue  # noqa: PLC0415

    if not any(record.name == name and record.size for record in await lists.all()):
        raise InvalidValue("NAME", name, "a directory with at least one entry")
    import_id = uuid4().hex
    await lists.put_page(name, import_id, 1, ImportPageRequest(urls=[], allow_shrink=True))
    record = await lists.apply(name, import_id, pages=1)
    while record.is_under_way:
        record = await lists.apply(name, import_id, pages=1)
    return record


def _row(record: "DirectoryRecord") -> tuple[str, ...]:
    applied, held = record.applied, record.suspended
    return (
        record.name,
        f"{record.size:,}",
        "never" if applied is None else time_text(applied.state_since),
        "-" if applied is None or applied.source is None else applied.source,
        "" if held is None else held.explanation or "it has shrunk",
    )


def _write_change(name: str, record: "ImportRecord", *, as_json: bool) -> None:
    if as_json:
        write_json(sys.stdout, {"directory": name, **record.model_dump(mode="json", exclude_none=True)})
        return
    size = record.size_before + record.added - record.removed
    text = f"{name}: {record.removed:,} removed, {pluralize(size, 'target')} left"
    sys.stdout.write(printable(text) + "\n")
