"""How is this agent now, by the eyes of whoever watches it? Asked on the command line."""

import sys
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from agent_health.cli.directories import LocalDatabase
from agent_health.cli.known_as import ListsTargets, done_for
from agent_health.cli.registry_access import DEFAULT_URL, AsJson, KeyFile, PlainHttp, RegistryUrl, ask
from agent_health.cli.table import write_json
from agent_health.cli.terminal import printable

if TYPE_CHECKING:
    from agent_health.target_record import RecheckRecord, TargetRecord

LOOK_SECONDS = 1.0
"""How often the result is looked for."""
EXIT_NO_RESULT = 2


class _Targets(ListsTargets, Protocol):
    """Who knows targets: a registry's client, or the database of a crawl."""

    async def get(self, target_id: str) -> "TargetRecord": ...
    async def recheck(self, target_id: str) -> "RecheckRecord": ...


def recheck(
    target: Annotated[
        str, typer.Argument(metavar="URL|ID", help="Of an agent that is probed, as its directory lists it.")
    ],
    *,
    wait_seconds: Annotated[
        float, typer.Option("--wait", min=0, max=600, metavar="SECONDS", help="For the result, at most.")
    ] = 60.0,
    as_json: AsJson = False,
    database: LocalDatabase = None,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> int:
    """Have an agent probed now, whatever its cadence says, and show what was seen.

    The prober that watches it looks within seconds; at most once a minute. Nobody is probed from here: for
    an agent that nobody watches there is `agent-health probe`.

    \b
    Examples:
      agent-health recheck https://agent.example
      agent-health recheck billing-1 --wait 10
      agent-health recheck https://agent.example --database sqlite:///directory.db

    \b
    Exit codes:
      0 it was looked at   1 refused by the registry   2 no usable answer, or nobody has looked in time
      3 wrong usage

    \b
    The JSON is that of GET /api/v1/targets/{target_id}.
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    if database is not None:
        from agent_health.access import Role  # noqa: PLC0415 - pydantic takes 60 ms, SQLAlchemy 150
        from agent_health.cli.local_registry import LocalTargets, run_locally  # noqa: PLC0415

        found, is_new = run_locally(
            database, Role.COORDINATOR, lambda local: _looked(LocalTargets(local), target, wait_seconds)
        )
    else:
        found, is_new = ask(
            lambda client: _looked(client.targets, target, wait_seconds),
            registry=registry,
            key_file=key_file,
            allow_plain_http=allow_plain_http,
        )
    if as_json:
        write_json(sys.stdout, found.model_dump(mode="json", exclude_none=True))
    else:
        _write(found)
    if is_new:
        return 0
    whose = "the crawl of this database" if database is not None else "the registry's probers"
    sys.stderr.write(
        f"nobody has looked within {wait_seconds:g} s: do {whose} run? That is what was known before.\n"
    )
    return EXIT_NO_RESULT


async def _looked(targets: _Targets, given: str, wait_seconds: float) -> "tuple[TargetRecord, bool]":
    """Ask for a look, and wait for it; return what is known then, and whether it is new.

    TargetNotFound or NotFound if nobody is known by what was given.
    """
    import asyncio  # noqa: PLC0415 - loaded by now

    asked = await done_for(targets.recheck, targets, given)
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + wait_seconds
    while True:
        found = await targets.get(asked.target_id)
        is_new = found.observed_at != asked.observed_at
        if is_new or loop.time() >= give_up_s:
            return found, is_new
        await asyncio.sleep(min(LOOK_SECONDS, max(0.0, give_up_s - loop.time())))


def _write(found: "TargetRecord") -> None:
    from datetime import UTC, datetime  # noqa: PLC0415 - loaded by now

    from agent_health.cli.observation_page import write_seen  # noqa: PLC0415

    if found.seen is None or found.result is None:
        sys.stdout.write(f"{printable(found.url)}\nnever measured\n")
        return
    write_seen(sys.stdout, found.url, found.result, found.seen, now=datetime.now(UTC))
    if found.agent_status is not None:
        told = f"The registry calls it {found.agent_status}, its health {found.agent_health}."
        sys.stdout.write(printable(told) + "\n")
