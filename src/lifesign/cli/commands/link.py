"""`lifesign agents link`: get the token that links an agent to its listed record."""

import sys
from typing import Annotated

import typer

from lifesign.cli.options.agent_reference import check_id
from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.registry_access import DEFAULT_URL, KeyFile, PlainHttp, RegistryUrl, ask
from lifesign.cli.output.agent_page import time_text
from lifesign.cli.output.table import write_json
from lifesign.cli.output.terminal import PageLine, write_page


def link(
    agent_id: Annotated[str, typer.Argument(metavar="AGENT_ID", help="Id of the registered agent.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="URL of the agent, as the directory lists it.")],
    *,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """Get a token for a listed agent to serve, as proof that it is this registered agent.

    Serve the token in a line of its own at the shown address. The registry requests it there every ten
    minutes, for a week. Once the registry has found the token, agent and target are one record. Keep serving
    the token: the link ends if it is missing. If you repeat the command, you get the same token, and the
    registry requests it at once.

    The key must be the agent's own or that of an admin.

    \b
    Examples:
      lifesign agents link billing-1 https://agent.example/
      lifesign agents link billing-1 https://agent.example/ --json | jq -r .token

    \b
    Keys of --json:
      target_id   url        the listed agent
      token       proof_url  what to serve, and where
      requested_at
      expires_at  when the registry stops looking; absent once the token was found
      checked_at  proven_at  when the registry last looked, and last found it
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    check_id(agent_id)
    token = ask(
        lambda client: client.agents.link(agent_id, url),
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )
    if as_json:
        write_json(sys.stdout, token.model_dump(mode="json", exclude_none=True))
        return
    lines = [
        PageLine("target", f"{token.target_id} ({token.url})"),
        PageLine("token", token.token),
        PageLine("serve it at", token.proof_url),
    ]
    if token.expires_at is not None:
        lines.append(PageLine("expires", time_text(token.expires_at)))
    lines.append(
        PageLine("last looked", "never" if token.checked_at is None else time_text(token.checked_at))
    )
    lines.append(PageLine("found", "no" if token.proven_at is None else time_text(token.proven_at)))
    write_page(sys.stdout, lines, colours=False)
