"""Maintenance of agents and pools, on the command line."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lifesign.cli.options.agent_reference import check_id
from lifesign.cli.options.duration import duration_option, format_duration
from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.registry_access import DEFAULT_URL, KeyFile, PlainHttp, RegistryUrl, ask
from lifesign.cli.output.agent_page import time_text
from lifesign.cli.output.table import write_json
from lifesign.cli.output.terminal import PageLine, listed, write_page
from lifesign.domain.text.counts import pluralize
from lifesign.errors import InvalidValue

if TYPE_CHECKING:
    from lifesign.client import RegistryClient
    from lifesign.client.registry_agents import MaintenanceChange

MAX_MAINTENANCE_SECONDS = 30 * 86_400


def maintenance(
    agent_id: Annotated[
        str | None, typer.Argument(metavar="[AGENT_ID]", help="Id of the agent. For a pool, use --pool.")
    ] = None,
    *,
    pool: Annotated[
        str | None,
        typer.Option(
            "--pool",
            metavar="POOL",
            help="All agents of this pool that are neither dead nor deregistered, instead of one agent.",
        ),
    ] = None,
    duration: Annotated[
        float | None,
        duration_option(
            "--for",
            least_s=1,
            most_s=MAX_MAINTENANCE_SECONDS,
            help="Duration of the maintenance, at most 30d.",
        ),
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="TEXT", help="Reason, which is written to the event log."),
    ] = None,
    ended: Annotated[bool, typer.Option("--end", help="End the maintenance before its time.")] = False,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """Begin or end a maintenance, during which no evidence makes an agent unhealthy or dead.

    The maintenance continues after a restart of the registry. It ends after --for or with --end. The
    maintenance of a pool does not include agents that join later.

    \b
    Examples:
      lifesign agents maintenance billing-1 --for 1h --reason "new disk"
      lifesign agents maintenance --pool billing --for 15m --reason deploy
      lifesign agents maintenance billing-1 --end
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    if (agent_id is None) == (pool is None):
        raise InvalidValue("AGENT_ID", agent_id, "exactly one of an agent and --pool")
    if agent_id is not None:
        check_id(agent_id)
    if ended == (duration is not None):
        raise InvalidValue(
            "--for", None if duration is None else format_duration(duration), "either --for or --end"
        )
    if not ended and not reason:
        raise InvalidValue("--reason", reason, "a reason for the event log")
    found = ask(
        lambda client: _set_maintenance(client, agent_id, pool, duration, reason or ""),
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )
    if as_json:
        write_json(sys.stdout, found.model_dump(mode="json", exclude_none=True))
        return
    until = "ended" if found.until is None else f"until {time_text(found.until)}"
    if pool is not None and not found.agents:
        until = f"has ended: no agent of {pool} was in maintenance"
    elif pool is not None:
        until += f" for {pluralize(len(found.agents), 'agent')} of {pool}"
    write_page(sys.stdout, [PageLine("maintenance", until), *listed("agent", found.agents)], colours=False)


async def _set_maintenance(
    client: "RegistryClient", agent_id: str | None, pool: str | None, seconds: float | None, reason: str
) -> "MaintenanceChange":
    """Begin or end it, and describe one agent like a pool of one."""
    from lifesign.client.registry_agents import MaintenanceChange  # noqa: PLC0415 - loaded by now

    agents = client.agents
    if pool is not None:
        if seconds is None:
            return await agents.end_pool_maintenance(pool)
        return await agents.maintain_pool(pool, seconds=seconds, reason=reason)
    assert agent_id is not None  # noqa: S101 - one of the two is given
    if seconds is None:
        record = await agents.end_maintenance(agent_id)
    else:
        record = await agents.maintain(agent_id, seconds=seconds, reason=reason)
    return MaintenanceChange(
        role_id=record.role_id or "", agents=[record.agent_id], until=record.maintenance_until
    )
