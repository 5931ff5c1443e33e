"""Command that erases an agent."""

import sys
from typing import Annotated

import typer

from lifesign.cli.options.agent_reference import check_id
from lifesign.cli.options.confirmation import is_confirmed
from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.registry_access import DEFAULT_URL, KeyFile, PlainHttp, RegistryUrl, ask
from lifesign.cli.output.exit_codes import ExitCode
from lifesign.cli.output.table import write_json
from lifesign.cli.output.terminal import PageLine, write_page
from lifesign.domain.net.peer_text import printable
from lifesign.domain.text.counts import pluralize

"""Maximum length of an answer to a prompt."""


def erase(
    agent_id: Annotated[str, typer.Argument(metavar="AGENT_ID", help="Id of the agent.")],
    *,
    is_sure: Annotated[
        bool,
        typer.Option(
            "--yes", help="Do not ask for confirmation. Required if standard input is not a terminal."
        ),
    ] = False,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> int:
    """Erase an agent and its record permanently. To keep the record, use `deregister`.

    The registry deletes the agent's record, keys, commands, leases and target, and the payloads of its
    events. The id stays in the log, because the hash chain covers it. Tasks and intent states stay without
    the name. The payloads in archives are erased within an hour. Backups and copies are not changed.

    \b
    Examples:
      lifesign agents erase billing-1
      lifesign agents erase billing-1 --yes --json

    \b
    Keys of --json:
      agent_id   events    number of events whose payload was erased
      archived_sequence    events up to here are archived, and erased there within an hour; 0: none are
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    check_id(agent_id)
    if not is_sure and not _is_wanted(agent_id):
        sys.stderr.write("lifesign: nothing was erased\n")
        return ExitCode.FAILED
    erased = ask(
        lambda client: client.agents.erase(agent_id),
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )
    if as_json:
        write_json(sys.stdout, erased.model_dump(mode="json"))
        return 0
    lines = [
        PageLine("agent", erased.agent_id),
        PageLine("erased", f"its record, and the payloads of {pluralize(erased.events, 'event')}"),
    ]
    if erased.archived_sequence:
        lines.append(
            PageLine(
                "archived",
                f"events up to {erased.archived_sequence} are archived: erased there within an hour",
            )
        )
    write_page(sys.stdout, lines, colours=False)
    return 0


def _is_wanted(agent_id: str) -> bool:
    question = f"Erase {printable(agent_id)} permanently?"
    return is_confirmed(question, reason="Erasing an agent cannot be undone.")
