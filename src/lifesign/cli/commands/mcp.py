"""MCP server with lifesign's tools."""

import os
import sys
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifesign.cli.options.registry_access import KeyFile, PlainHttp, read_key
from lifesign.cli.options.secret_file import read_secret
from lifesign.cli.output.error_lines import complain
from lifesign.cli.output.exit_codes import ExitCode
from lifesign.client.environment_variables import KEY_VARIABLE, URL_VARIABLE
from lifesign.client.secret_file import RenewedKey
from lifesign.domain.net.peer_text import printable
from lifesign.errors import InvalidValue
from lifesign.filesystem.core_dumps import forbid_core_dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mcp.server import Server

    from lifesign.client.registry_tasks import HeldRun
    from lifesign.domain.net.allowed_addresses import Network
    from lifesign.mcp.listen_address import ListenAddress
    from lifesign.mcp.tool_definition import ToolContext

TOKEN_VARIABLE = "LIFESIGN_MCP_TOKEN"  # noqa: S105 - the name of it, not the token


class McpTransport(StrEnum):
    """Transport of the protocol."""

    STDIO = "stdio"
    HTTP = "http"


def mcp(
    *,
    transport: Annotated[
        McpTransport,
        typer.Option(
            "--transport",
            metavar="stdio|http",
            help="stdio: serve the program that starts this command; http: listen on a socket.",
        ),
    ] = McpTransport.STDIO,
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry",
            metavar="URL",
            envvar=URL_VARIABLE,
            help="URL of the registry. Without it, only the tools that need no registry are offered.",
        ),
    ] = None,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
    allow_network: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-network",
            metavar="NETWORK",
            help="Private network whose agents may be checked, such as 127.0.0.0/8; may be repeated.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Address on which the server listens with --transport http.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65_535,
            metavar="PORT",
            help="Port on which the server listens with --transport http; 0: any free port.",
        ),
    ] = 8441,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="HOST",
            help="Host name under which HTTP clients reach this server, besides --host; may be repeated.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                f"File with the token that HTTP clients must send. Without it: ${TOKEN_VARIABLE}, or on a "
                "terminal a new token."
            ),
        ),
    ] = None,
) -> int:
    """Serve lifesign's tools to AI models, over MCP.

    check_agent advises whether to call an agent. With a registry there are more tools: heartbeat reports that
    an agent is alive, find_agents lists agents by capability, and report_progress, mark_complete,
    request_human_help and delegate_subtask are for the holder of a task.

    The key decides what the tools may do. An agent's own key sends heartbeats for that agent and writes to
    its tasks. find_agents needs a key of role reader, prober, coordinator or admin.

    If LIFESIGN_TASK_ID, LIFESIGN_RUN_ID and LIFESIGN_FENCING_TOKEN are set, the tools write to that run.
    Otherwise each call names the run.

    A URL that a model passes may come from a text of a stranger. Therefore check_agent requests only public
    addresses, and networks of --allow-network.

    With stdio, standard output belongs to the protocol, and a signal ends the server at once. With http,
    every request needs the token. A new token is shown once, on this terminal. Without a terminal none is
    created: pass --token-file. On SIGTERM or Ctrl-C the server answers pending requests, then ends.

    \b
    Examples:
      lifesign mcp
      lifesign mcp --registry https://registry.example --key-file key
      lifesign mcp --transport http --token-file token
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    # The SDK takes a second, which `--help` does not need.
    import asyncio  # noqa: PLC0415

    from lifesign.domain.net.allowed_addresses import read_networks  # noqa: PLC0415

    # First of all: without the SDK, the message names the extra that installs everything.
    from lifesign.mcp.run_binding import run_in  # noqa: PLC0415
    from lifesign.mcp.server import new_server  # noqa: PLC0415
    from lifesign.mcp.tool_list import offered  # noqa: PLC0415

    networks = read_networks(allow_network or (), "--allow-network")
    if not registry and key_file is not None:
        raise InvalidValue(
            "--registry",
            None,
            f"the URL of the registry to which the key of --key-file belongs, here or in ${URL_VARIABLE}",
            hint="pass --registry URL; or omit --key-file, since check_agent needs no registry",
        )
    known = None
    if registry:
        # A client starts this server: an operator who rotates the key could not restart it.
        known = _Registry(registry, RenewedKey(read_key(key_file), key_file), allow_plain_http)
    front = _front(host, port, allow_host or (), token_file) if transport is McpTransport.HTTP else None
    run = run_in(os.environ)
    tools = offered(has_registry=known is not None, has_run=run is not None)
    _log_line(f"tools: {', '.join(tool.name for tool in tools)}")
    if known is None:
        complain(
            "`lifesign mcp` offers no tools that need a registry, because no registry is set",
            hint=f"pass --registry URL and --key-file FILE, or set {URL_VARIABLE} and {KEY_VARIABLE}",
        )
    if front is None and sys.stdin.isatty():
        _log_line("waiting for an MCP client on standard input; Ctrl-C ends the command")
    try:
        with _logging():
            asyncio.run(_serve(partial(new_server, tools), networks, known, front, run))
    except KeyboardInterrupt:
        return 0
    except SystemExit as ended:
        return ExitCode.FAILED if ended.code else ExitCode.SUCCESS
    return 0


@dataclass(frozen=True, slots=True)
class _Registry:
    """Registry and key."""

    url: str
    key: RenewedKey = field(repr=False)
    allow_plain_http: bool


@dataclass(frozen=True, slots=True)
class _Front:
    """Address and token for http."""

    place: "ListenAddress"
    token: str = field(repr=False)
    is_new: bool


async def _serve(
    new_server: "Callable[[ToolContext], Server[Any]]",
    networks: "Sequence[Network]",
    registry: _Registry | None,
    front: _Front | None,
    run: "HeldRun | None",
) -> None:
    """Serve until the client disconnects, or a signal comes."""
    from lifesign.client import RegistryClient  # noqa: PLC0415 - see mcp
    from lifesign.mcp.tool_definition import ToolContext  # noqa: PLC0415
    from lifesign.mcp.vetted_get import vetted_get  # noqa: PLC0415
    from lifesign.serving.loop_threads import use_enough_threads  # noqa: PLC0415

    use_enough_threads("mcp-loop")
    async with AsyncExitStack() as opened:
        get = await opened.enter_async_context(vetted_get(networks))
        client = None
        if registry is not None:
            client = await opened.enter_async_context(
                RegistryClient(registry.url, key=registry.key, allow_plain_http=registry.allow_plain_http)
            )
        server = new_server(ToolContext(get=get, registry=client, run=run))
        if front is None:
            from lifesign.mcp.over_stdio import over_stdio  # noqa: PLC0415

            await over_stdio(server)
        else:
            from lifesign.mcp.over_http import over_http  # noqa: PLC0415

            await over_http(server, front.place, front.token, say_ready=partial(_say_ready, front))


def _front(host: str, port: int, names: "Sequence[str]", token_file: Path | None) -> _Front:
    """Return the address and the token of the server; InvalidValue for invalid ones."""
    from lifesign.mcp.authentication import check_token, new_token  # noqa: PLC0415 - see mcp
    from lifesign.mcp.listen_address import ListenAddress  # noqa: PLC0415

    forbid_core_dumps()
    place = ListenAddress(host=host, port=port, names=tuple(names))
    place.accepted_hosts()
    if token_file is not None:
        return _Front(
            place, check_token(read_secret(token_file, "--token-file", "token"), "--token-file"), is_new=False
        )
    if given := os.environ.get(TOKEN_VARIABLE):
        return _Front(place, check_token(given, TOKEN_VARIABLE), is_new=False)
    if not sys.stdout.isatty():
        # The output of a service goes to a log that others may read.
        raise InvalidValue(
            "--token-file",
            None,
            f"a file with the token, or the token in ${TOKEN_VARIABLE}: none is created without a terminal",
            hint="create one: (umask 077; openssl rand -hex 32 > FILE)",
        )
    return _Front(place, new_token(), is_new=True)


def _say_ready(front: _Front, url: str) -> None:
    lines = [f"lifesign mcp at {url}"]
    if front.is_new:
        lines += ["token, shown this once:", f"  {front.token}"]
    sys.stdout.write("".join(printable(line) + "\n" for line in lines))
    sys.stdout.flush()


@contextmanager
def _logging() -> "Iterator[None]":
    """Write the log to standard error; an MCP client need not read it."""
    from lifesign.serving.log_lines import LogLine  # noqa: PLC0415 - see mcp
    from lifesign.serving.log_output import logging_to  # noqa: PLC0415
    from lifesign.serving.stderr_handler import stderr_handler  # noqa: PLC0415

    handler = stderr_handler()
    handler.setFormatter(LogLine())
    try:
        with logging_to(handler):
            yield
    finally:
        handler.close()


def _log_line(message: str) -> None:
    """Print a line for the operator: standard output belongs to the protocol."""
    sys.stderr.write(f"lifesign mcp: {printable(message)}\n")
