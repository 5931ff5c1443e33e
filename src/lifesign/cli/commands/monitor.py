"""The monitor of a registry: what an operator knows to be down. Asked on the command line."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lifesign.cli.options.registry_access import DEFAULT_URL, AsJson, KeyFile, PlainHttp, RegistryUrl, ask
from lifesign.cli.output.agent_page import time_text
from lifesign.cli.output.table import write_json
from lifesign.domain.net.peer_text import printable
from lifesign.errors import InvalidValue

if TYPE_CHECKING:
    from lifesign.client import RegistryClient
    from lifesign.domain.models.monitor import Confirmed

monitor = typer.Typer(
    name="monitor",
    help="Confirm outages that no witness can prove.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


@monitor.callback()
def _group() -> None:
    """Keep `confirm` a command of its own, though it is the only one."""


@monitor.command("confirm")
def confirm_outage(
    *,
    network_class: Annotated[
        str | None,
        typer.Option(
            "--class", metavar="CLASS", help="Network class: public_ipv4, public_ipv6 or 10.1.0.0/16."
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="AGENT_ID", help="One agent or target.")
    ] = None,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> int:
    """Confirm that a network class, or one agent, may be down: failures then count without a witness.

    This concerns targets that have not answered since. One that answers later is alive again, so that a
    wrong confirmation does no lasting harm. It needs an admin key.

    \b
    Examples:
      lifesign monitor confirm --class 10.1.0.0/16
      lifesign monitor confirm --agent billing-1

    \b
    Exit codes:
      0 confirmed   1 refused by the registry   2 no usable answer   3 wrong usage
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    if (network_class is None) == (agent is None):
        raise InvalidValue("--class", network_class, "exactly one of --class and --agent")

    async def confirmed(client: "RegistryClient") -> "Confirmed":
        if network_class is not None:
            return await client.monitor.confirm_class(network_class)
        return await client.monitor.confirm_agent(agent or "")

    done = ask(confirmed, registry=registry, key_file=key_file, allow_plain_http=allow_plain_http)
    if as_json:
        write_json(sys.stdout, done.model_dump(mode="json", exclude_none=True))
    else:
        subject = done.network_class or done.agent_id or ""
        sys.stdout.write(printable(f"confirmed {subject} at {time_text(done.confirmed_at)}") + "\n")
    return 0
