"""Commands that end the work of an agent: drain, deregister, and a command in the reply to its heartbeat."""

import sys
from typing import Annotated

import typer

from lifesign.cli.options.agent_reference import check_id
from lifesign.cli.options.duration import duration_option
from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.registry_access import DEFAULT_URL, KeyFile, PlainHttp, RegistryUrl, ask
from lifesign.cli.output.agent_page import time_text, write_record
from lifesign.cli.output.table import write_json
from lifesign.cli.output.terminal import PageLine, write_page
from lifesign.errors import InvalidValue

MAX_DURATION_SECONDS = 604_800
"""The same as in the models of the API, whose import takes 60 ms."""

AgentIdArgument = Annotated[str, typer.Argument(metavar="AGENT_ID", help="Id of the agent.")]
DrainTimeout = Annotated[
    float | None,
    duration_option(
        "--drain-timeout",
        least_s=1,
        most_s=MAX_DURATION_SECONDS,
        help="Time limit for the drain. Without it: the drain timeout of the agent's record.",
    ),
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", help="Reason, which the agent gets with the command."),
]


def drain_agent(
    agent_id: AgentIdArgument,
    *,
    drain_timeout: DrainTimeout = None,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """Let an agent finish its work without getting new work, and then deregister it.

    An agent that still holds leases when the drain timeout ends becomes dead.

    The reply to the agent's next heartbeat requests the drain. To send it a command with a reason instead:
    agents command AGENT_ID drain --reason TEXT.

    \b
    Examples:
      lifesign agents drain billing-1 --drain-timeout 10m
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    check_id(agent_id)
    shown = ask(
        lambda client: client.agents.drain(agent_id, drain_timeout_seconds=drain_timeout),
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )
    write_record(shown, as_json=as_json)


def deregister_agent(
    agent_id: AgentIdArgument,
    *,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """Deregister an agent at once, without a drain; its leases end, its record stays.

    \b
    Examples:
      lifesign agents deregister billing-1
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    check_id(agent_id)
    ask(
        lambda client: client.agents.deregister(agent_id),
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )
    if as_json:
        write_json(sys.stdout, {"agent_id": agent_id, "status": "deregistered"})
    else:
        write_page(
            sys.stdout, [PageLine("agent", agent_id), PageLine("status", "deregistered")], colours=False
        )


def send_command(
    agent_id: AgentIdArgument,
    command: Annotated[str, typer.Argument(metavar="drain", help="Command to queue.")],
    *,
    reason: Reason = None,
    drain_timeout: DrainTimeout = None,
    expires_in: Annotated[
        float | None,
        duration_option(
            "--expires-in",
            least_s=1,
            most_s=MAX_DURATION_SECONDS,
            help=(
                "Time after which the command expires if the agent has not followed it. Without it: "
                "the registry's --command-ttl, by default 1h."
            ),
        ),
    ] = None,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """Queue a command, which the agent gets in the response to its next heartbeat.

    \b
    Examples:
      lifesign agents command billing-1 drain --reason "new version"
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    if command != "drain":
        raise InvalidValue("command", command, "drain")
    check_id(agent_id)
    sent = ask(
        lambda client: client.agents.send_command(
            agent_id,
            "drain",
            reason=reason,
            drain_timeout_seconds=drain_timeout,
            expires_in_seconds=expires_in,
        ),
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )
    if as_json:
        write_json(sys.stdout, sent.model_dump(mode="json", exclude_none=True))
        return
    lines = [
        PageLine("agent", sent.agent_id),
        PageLine("command", f"{sent.command} ({sent.id})"),
        PageLine("until", time_text(sent.expires_at)),
    ]
    write_page(sys.stdout, lines, colours=False)
