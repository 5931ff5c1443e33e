"""Command that turns the activity of opencode sessions into heartbeats."""

import json
import os
import random
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.registry_access import DEFAULT_URL, PlainHttp, RegistryUrl
from lifesign.client.environment_variables import KEY_VARIABLE
from lifesign.domain.net.peer_text import printable
from lifesign.domain.text.times import utc_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifesign.activity.watch_events import Emit, WatchEvent

watch_activity = typer.Typer(
    name="watch-activity",
    help="Send an agent's heartbeats according to the activity in its sessions.",
    rich_markup_mode=None,
)


@watch_activity.callback()
def _watch_activity() -> None:
    """Send an agent's heartbeats according to the activity in its sessions."""


@watch_activity.command("opencode")
def watch_opencode(
    url: Annotated[str, typer.Argument(metavar="URL", help="URL of the opencode server.")],
    *,
    sessions: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="SESSION=AGENT_ID",
            help="Id of a session, and id of the agent that works in this session; may be repeated.",
        ),
    ] = None,
    directory: Annotated[
        str | None,
        typer.Option(
            "--directory",
            metavar="DIRECTORY",
            help="Only sessions that work in this directory. Without it: all.",
        ),
    ] = None,
    registry: RegistryUrl = DEFAULT_URL,
    key_files: Annotated[
        list[str] | None,
        typer.Option(
            "--key-file",
            metavar="[AGENT_ID=]FILE|DIRECTORY",
            help=(
                "File with the key for all agents, AGENT_ID=FILE for one agent, or a directory with a file "
                "for each agent; may be repeated. "
                f"Without it: ${KEY_VARIABLE}."
            ),
        ),
    ] = None,
    as_json: AsJson = False,
    allow_plain_http: PlainHttp = False,
) -> int:
    """Send heartbeats for agents that work in sessions of an opencode server.

    Activity of a session causes a heartbeat of its agent, at most every 5 s. An idle session causes
    heartbeats at its agent's interval while the server answers. A busy session without events causes none.
    Each heartbeat, with its reason, is a line on standard output.

    Without --map an agent's registration names its sessions: metadata.opencode_session, one or a list. Each
    agent uses its own key: --key-file billing-1=FILE, or a DIRECTORY with files named like their agents. A
    single key for all agents must be an admin's. If the opencode server requires a password:
    $OPENCODE_SERVER_PASSWORD, and $OPENCODE_SERVER_USERNAME if that is not "opencode".

    \b
    Examples:
      lifesign watch-activity opencode http://127.0.0.1:4096 --map ses_1f83=billing-1 --key-file key
      lifesign watch-activity opencode http://127.0.0.1:4096 --key-file /etc/lifesign/keys --json

    \b
    Keys of --json, one object per line:
      at    time   what  heartbeat, refused, command, session_error, session_absent, session_unreadable,
                         unknown_session, server_unreachable, server_reachable, registry_unreachable,
                         registry_back, mapping, omitted or ended
      text  for people   agent_id   session_id
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    # aiohttp takes 200 ms, which `--help` does not need.
    import asyncio  # noqa: PLC0415

    from lifesign.activity.heartbeat_sink import RegistryHeartbeatSink  # noqa: PLC0415
    from lifesign.activity.opencode import PASSWORD_VARIABLE, USER_VARIABLE, OpencodeServer  # noqa: PLC0415
    from lifesign.activity.watcher import Watcher  # noqa: PLC0415
    from lifesign.cli.options.watched_agents import read_watched  # noqa: PLC0415

    watched = read_watched(sessions or (), key_files or ())
    server = OpencodeServer(
        url,
        directory=directory,
        password=os.environ.get(PASSWORD_VARIABLE),
        username=os.environ.get(USER_VARIABLE),
        allow_plain_http=allow_plain_http,
    )
    heart = RegistryHeartbeatSink(registry, watched.keys, allow_plain_http=allow_plain_http)

    async def watch(emit: "Emit") -> None:
        watching = asyncio.current_task()
        if watching is not None and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, watching.cancel)
        async with server, heart:
            await Watcher(server, heart, watched.sessions, emit, chance=random.random).run()

    try:
        with _event_writer(as_json=as_json) as emit:
            asyncio.run(watch(emit))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 0
    return 0


@contextmanager
def _event_writer(*, as_json: bool) -> "Iterator[Emit]":
    """Yield a function that writes each event in a thread: no heartbeat waits for a reader of the lines.

    It raises BrokenPipeError if the reader has left.
    """
    from datetime import UTC, datetime  # noqa: PLC0415 - not needed for `--help`

    from lifesign.activity.watch_events import WatchEvent, WatchEventKind  # noqa: PLC0415
    from lifesign.serving.line_writer import LineWriter  # noqa: PLC0415

    def line_of(event: WatchEvent) -> str:
        at = utc_text(datetime.now(UTC), "milliseconds")
        return _json_line(at, event) if as_json else _line(at, event)

    def emit(event: WatchEvent) -> None:
        if lines.failure is not None:
            raise lines.failure
        lines.write(line_of(event))

    lines = LineWriter(
        sys.stdout,
        "lines of the watcher",
        lambda text: line_of(WatchEvent(what=WatchEventKind.OMITTED, text=text)),
    )
    lines.start()
    try:
        yield emit
    finally:
        lines.finish()


def _json_line(at: str, event: "WatchEvent") -> str:
    members = {
        "at": at,
        "what": event.what,
        "agent_id": event.agent_id,
        "session_id": event.session_id,
        "text": event.text,
    }
    return json.dumps({name: value for name, value in members.items() if value is not None}) + "\n"


def _line(at: str, event: "WatchEvent") -> str:
    whose = "" if event.agent_id is None else f"{printable(event.agent_id)}: "
    return f"{at}  {event.what:<20}  {whose}{printable(event.text)}\n"
