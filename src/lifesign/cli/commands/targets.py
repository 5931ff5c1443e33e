"""Commands about targets and their probe results."""

import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lifesign.cli.commands.directories import LocalDatabase
from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.registry_access import (
    DEFAULT_URL,
    KeyFile,
    MaxEvidenceAge,
    PlainHttp,
    RegistryUrl,
    ask,
)
from lifesign.cli.output.agent_page import time_text
from lifesign.cli.output.table import write_json, write_table
from lifesign.domain.text.counts import plural
from lifesign.errors import InvalidValue

if TYPE_CHECKING:
    from lifesign.client.registry_targets import PagedTargets, TargetQuery
    from lifesign.domain.models.targets import TargetList, TargetSummary

NEVER_PROBED: Final = "never_probed"
"""Shown instead of a result class for targets without a measured result."""
MAX_PAGE: Final = 1_000
"""Maximum page size."""
MAX_IN_TABLE: Final = 100_000
"""Maximum number of rows in a table. Column widths depend on all rows, which are kept in memory."""
USUAL_IN_TABLE: Final = 100
HEADS: Final = ("URL", "IS", "RESULT", "HEALTH", "SINCE", "MEASURED", "WHY")

targets = typer.Typer(
    name="targets",
    help="List targets and the results of their probes.",
    rich_markup_mode=None,
    no_args_is_help=False,
)


@targets.command("list")
def list_targets(
    *,
    result: Annotated[
        list[str] | None,
        typer.Option(
            "--result",
            metavar="RESULT",
            help=f"Only targets with this result, such as timeout, or {NEVER_PROBED}; may be repeated.",
        ),
    ] = None,
    layer_result: Annotated[
        list[str] | None,
        typer.Option(
            "--layer-result",
            metavar="RESULT",
            help=(
                "Only targets whose card, interface, health document, message or further path has this "
                "result, such as credentials_rejected; may be repeated."
            ),
        ),
    ] = None,
    has_failed_assertions: Annotated[
        bool, typer.Option("--failed-assertions", help="Only targets with a failed assertion.")
    ] = False,
    is_alive: Annotated[
        bool,
        typer.Option(
            "--alive",
            help=("Only targets that are alive: with the result ok, or gated (credentials are required)."),
        ),
    ] = False,
    is_not_alive: Annotated[
        bool, typer.Option("--not-alive", help="Only targets that were probed and gave no liveness signal.")
    ] = False,
    directory: Annotated[
        str | None,
        typer.Option("--directory", metavar="NAME", help="Only targets that this directory lists."),
    ] = None,
    max_evidence_age: MaxEvidenceAge = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            metavar="COUNT",
            help=f"Maximum number of targets. Without it: {USUAL_IN_TABLE} in a table, all as JSON or CSV.",
        ),
    ] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of text.")] = False,
    database: LocalDatabase = None,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """List targets with their result, their reported health, the time of the last probe, and the reason.

    Sorted by host, then by URL. HEALTH is the status that the agent's health document reports; -: no
    document was read. An agent that reports to be unhealthy is alive.

    The result decides whether a target is alive, as in a census; for stale_document and never_probed that
    is unknown. --alive, --not-alive and --result are combined: a target that matches one of them is listed.
    The other options narrow that list. A layer is the card, the interface, the health document or the
    message: a target with a public card is ok, and its interface may reject the credential.

    \b
    Examples:
      lifesign targets list --database sqlite:///urls.db --alive
      lifesign targets list --database sqlite:///urls.db --result timeout --result refused
      lifesign targets list --layer-result credentials_rejected --layer-result token_error
      lifesign targets list --database sqlite:///urls.db --failed-assertions
      lifesign targets list --database sqlite:///urls.db --csv > targets.csv
      lifesign targets list --directory agents.txt --json | jq -r .targets[].url

    \b
    Result classes:
      ok gated credentials_rejected token_error not_an_agent invalid_document stale_document refused
      timeout dns_failure tls_failure http_error too_large redirect_refused rate_limited
      blocked_address internal not_measured never_probed

    \b
    Keys of --json:
      targets   as the registry lists them, and of each what it is: alive, not_alive or unknown
      total     how many match
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    if as_json and as_csv:
        raise InvalidValue("--csv", "given", "one of --json and --csv")
    named = [*(result or []), *_classes(is_alive=is_alive, is_not_alive=is_not_alive)]
    wanted = _target_query(named, layer_result or [], directory)
    wanted["failed_assertions"] = has_failed_assertions
    if max_evidence_age is not None:
        wanted["max_evidence_age"] = max_evidence_age
    # A registry's targets are probed all the time. A census database is as old as its last pass.
    is_continuous = database is None
    if is_continuous and (is_alive or is_not_alive):
        wanted["old_evidence"] = False
    most = limit if as_json or as_csv else min(limit or USUAL_IN_TABLE, MAX_IN_TABLE)

    async def written(source: "PagedTargets") -> None:
        pages = _pages(source, most, wanted)
        if as_csv:
            from lifesign.census.targets_csv import write_targets  # noqa: PLC0415 - pydantic takes 60 ms

            await write_targets(sys.stdout, pages, is_continuous=is_continuous)
        elif as_json:
            await _write_json(pages, is_continuous=is_continuous)
        else:
            await _write_table(pages, is_continuous=is_continuous)

    if database is None:
        ask(
            lambda client: written(client.targets),
            registry=registry,
            key_file=key_file,
            allow_plain_http=allow_plain_http,
        )
        return
    from lifesign.crawl.local_registry import LocalTargets, run_locally  # noqa: PLC0415
    from lifesign.domain.access.permissions import Role  # noqa: PLC0415 - pydantic takes 60 ms, SQLAlchemy 150

    run_locally(database, Role.READER, lambda local: written(LocalTargets(local)))


def _classes(*, is_alive: bool, is_not_alive: bool) -> list[str]:
    """Return the result classes of living targets, of targets that are not alive, or of both."""
    from lifesign.census.result_groups import Group, group_of  # noqa: PLC0415
    from lifesign.domain.observation.results import ResultClass  # noqa: PLC0415 - pydantic takes 60 ms

    groups = {Group.ALIVE} if is_alive else set()
    if is_not_alive:
        groups.add(Group.NOT_ALIVE)
    return [each for each in ResultClass if group_of(each) in groups]


def _target_query(
    results: Sequence[str], layer_results: Sequence[str], directory: str | None
) -> "TargetQuery":
    """Return the wanted classes; InvalidValue for an unknown class."""
    from lifesign.client.registry_targets import TargetQuery  # noqa: PLC0415 - pydantic takes 60 ms
    from lifesign.domain.observation.results import ResultClass  # noqa: PLC0415

    for option, names, classes in (
        ("--result", results, [*ResultClass, NEVER_PROBED]),
        ("--layer-result", layer_results, [*ResultClass]),
    ):
        for name in names:
            if name not in classes:
                raise InvalidValue(option, name, f"one of {', '.join(classes)}")
    wanted = TargetQuery(
        # Each once: --alive and --result may name the same.
        result=tuple(ResultClass(name) for name in dict.fromkeys(results) if name != NEVER_PROBED),
        layer_result=tuple(ResultClass(name) for name in dict.fromkeys(layer_results)),
        never_probed=NEVER_PROBED in results,
        sort="host",
    )
    if directory is not None:
        wanted["directory"] = directory
    return wanted


async def _pages(
    source: "PagedTargets", most: int | None, wanted: "TargetQuery"
) -> AsyncIterator["TargetList"]:
    """Yield as many pages as needed, the last one cut."""
    from lifesign.client.registry_targets import all_pages  # noqa: PLC0415 - see _wanted

    left = most
    async for page in all_pages(source, page=min(MAX_PAGE, most or MAX_PAGE), **wanted):
        yield page if left is None else page.model_copy(update={"targets": page.targets[:left]})
        if left is not None and (left := left - len(page.targets)) <= 0:
            return


async def _write_json(pages: AsyncIterator["TargetList"], *, is_continuous: bool) -> None:
    """Write one object, each target on its own line as it arrives."""
    from lifesign.census.targets_csv import alive_group  # noqa: PLC0415 - see _classes

    total, separator = 0, "\n"
    sys.stdout.write('{"targets": [')
    async for page in pages:
        total = total or page.total
        for target in page.targets:
            sys.stdout.write(separator)
            life = alive_group(target, is_continuous=is_continuous)
            shown = target.model_dump(mode="json", exclude_none=True) | {"is": life}
            write_json(sys.stdout, shown, indent=None)
            separator = ","
    sys.stdout.write(f'], "total": {total}}}\n')


async def _write_table(pages: AsyncIterator["TargetList"], *, is_continuous: bool) -> None:
    total, found = 0, []
    async for page in pages:
        total = total or page.total
        found += page.targets
    if not found:
        sys.stdout.write("no target matches\n")
        return
    rows = (_row(target, is_continuous=is_continuous) for target in found)
    write_table(sys.stdout, HEADS, rows)
    if failed := sum(target.failed_assertions is not None for target in found):
        have = plural(failed, "has", "have")
        sys.stdout.write(f"{failed:,} of these targets {have} failed assertions\n")
    if total > len(found):
        sys.stdout.write(f"{len(found):,} of {total:,} (see --limit)\n")


def _row(target: "TargetSummary", *, is_continuous: bool) -> tuple[str, ...]:
    from lifesign.census.report_tables import GROUP_WORDS  # noqa: PLC0415
    from lifesign.census.targets_csv import alive_group  # noqa: PLC0415 - see _classes

    is_old = is_continuous and target.unknown_reason is not None
    return (
        target.url,
        GROUP_WORDS[alive_group(target, is_continuous=is_continuous)],
        NEVER_PROBED if target.result is None else target.result,
        "-" if is_old or target.reported_health is None else target.reported_health,
        "-" if target.result_since is None else time_text(target.result_since),
        "-" if target.evidence_at is None else time_text(target.evidence_at),
        _reason_text(target, is_continuous=is_continuous),
    )


def _reason_text(target: "TargetSummary", *, is_continuous: bool) -> str:
    """Return the finding of the last probe, or why it no longer counts, with its age.

    A directory may list the URL of an agent that registered itself: then there are two rows of this URL.
    """
    from lifesign.domain.targets.target import is_target_id  # noqa: PLC0415 - see _classes

    why = _result_text(target, is_continuous=is_continuous)
    if is_target_id(target.target_id):
        return why
    registered = f"registered by agent {target.target_id}"
    return f"{registered}; {why}" if why else registered


def _result_text(target: "TargetSummary", *, is_continuous: bool) -> str:
    if not is_continuous or target.unknown_reason is None or target.result is None:
        return target.finding
    from lifesign.domain.observation.evidence_age import lost_text  # noqa: PLC0415 - see _classes

    return lost_text(target.unknown_reason, target.evidence_at, time.time())
