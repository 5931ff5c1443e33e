"""The monitor of a registry on the command line: suspensions, faults, and confirmed outages."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.registry_access import DEFAULT_URL, KeyFile, PlainHttp, RegistryUrl, ask
from lifesign.cli.options.shell_completion import offering
from lifesign.cli.output.agent_page import time_text
from lifesign.cli.output.table import write_json
from lifesign.cli.output.terminal import Colour, PageLine, has_colours, write_page
from lifesign.domain.net.peer_text import printable
from lifesign.errors import InvalidValue

if TYPE_CHECKING:
    from lifesign.client import RegistryClient
    from lifesign.domain.models.monitor import Confirmed, MonitorRecord

TRACKS = ("heartbeat", "probe")

monitor = typer.Typer(
    name="monitor",
    help=("Show and end suspensions of verdicts, and confirm outages that the probers cannot prove."),
    rich_markup_mode=None,
    no_args_is_help=True,
)


@monitor.command("show")
def show_monitor(
    *,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> int:
    """Show whether verdicts are suspended, and faults of the monitoring.

    \b
    Examples:
      lifesign monitor show
      lifesign monitor show --json | jq .silent_classes
    """  # noqa: D301 - \b keeps the lines of a paragraph apart

    async def get(client: "RegistryClient") -> "MonitorRecord":
        return await client.monitor.get()

    record = ask(get, registry=registry, key_file=key_file, allow_plain_http=allow_plain_http)
    _write_record(record, as_json=as_json)
    return 0


@monitor.command("release")
def release_suspension(
    *,
    track: Annotated[
        str | None,
        typer.Option(
            "--track",
            autocompletion=offering(*TRACKS),
            metavar="heartbeat|probe",
            help=("Kind of monitoring whose suspension ends: heartbeat or probe. Without it: both kinds."),
        ),
    ] = None,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> int:
    """End the suspension of verdicts: agents that are still silent become unhealthy or dead.

    Tracks that are not suspended are not changed. The command needs an admin key.

    \b
    Examples:
      lifesign monitor release
      lifesign monitor release --track heartbeat
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    if track not in {None, *TRACKS}:
        raise InvalidValue("--track", track, f"one of {', '.join(TRACKS)}")

    async def released(client: "RegistryClient") -> "MonitorRecord":
        from lifesign.domain.lifecycle.verdict_suspension import Track  # noqa: PLC0415 - loaded by now

        return await client.monitor.release(None if track is None else Track(track))

    record = ask(released, registry=registry, key_file=key_file, allow_plain_http=allow_plain_http)
    _write_record(record, as_json=as_json)
    return 0


@monitor.command("confirm")
def confirm_outage(
    *,
    network_class: Annotated[
        str | None,
        typer.Option(
            "--class", metavar="NETWORK_CLASS", help="Network class: public_ipv4, public_ipv6 or 10.1.0.0/16."
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="AGENT_ID", help="Id of the agent or target.")
    ] = None,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> int:
    """Confirm an outage of a network class or agent: failures then count although no other host answers.

    This concerns targets that have not answered since. A target that answers later is alive again, so a wrong
    confirmation does no lasting harm. The command needs an admin key.

    \b
    Examples:
      lifesign monitor confirm --class 10.1.0.0/16
      lifesign monitor confirm --agent billing-1
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


def _write_record(record: "MonitorRecord", *, as_json: bool) -> None:
    if as_json:
        write_json(sys.stdout, record.model_dump(mode="json", exclude_none=True))
    else:
        write_page(sys.stdout, _page(record), colours=has_colours(sys.stdout))


def _page(record: "MonitorRecord") -> Iterator[PageLine]:
    from lifesign.domain.models import monitor_faults  # noqa: PLC0415 - pydantic takes 60 ms

    for name, track in record.tracks.items():
        is_held = track.state == "suspended"
        why = f": {monitor_faults.suspension_text(track)}" if is_held else ""
        text = f"{track.state} since {time_text(track.since)}{why}"
        yield PageLine(name, text, Colour.YELLOW if is_held else None)
    if record.lost_evidence is not None:
        yield PageLine("evidence", monitor_faults.lost_evidence_text(record.lost_evidence), Colour.YELLOW)
    faults = (
        *monitor_faults.silent_class_faults(record),
        *monitor_faults.unreached_target_faults(record),
        *monitor_faults.credential_faults(record),
    )
    for fault in faults:
        yield PageLine("fault", fault.text, Colour.YELLOW)
        yield PageLine("hint", fault.hint)
    for network_class, at in record.confirmed_classes.items():
        yield PageLine("confirmed", f"{network_class} at {time_text(at)}")
    yield PageLine("last sweep", "never" if record.swept_at is None else time_text(record.swept_at))
