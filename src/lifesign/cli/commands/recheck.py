"""Command that requests a recheck by the registry's prober."""

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from lifesign.cli.commands.directories import LocalDatabase
from lifesign.cli.options.agent_reference import ListsTargets, with_agent_id
from lifesign.cli.options.duration import DefaultDuration, duration_option, format_duration
from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.registry_access import DEFAULT_URL, KeyFile, PlainHttp, RegistryUrl, ask
from lifesign.cli.output.agent_page import time_text
from lifesign.cli.output.broken_pipe import ignore_broken_pipe
from lifesign.cli.output.exit_codes import ExitCode
from lifesign.cli.output.table import write_json
from lifesign.domain.net.peer_text import printable
from lifesign.domain.probing.no_prober_hint import NO_CRAWL, NO_PROBER, no_prober_text

if TYPE_CHECKING:
    from lifesign.client import RegistryClient
    from lifesign.crawl.local_registry import LocalRegistry
    from lifesign.domain.models.targets import RecheckRecord, TargetRecord

POLL_SECONDS = 1.0
"""Interval at which the command asks for the result."""
JOIN_SECONDS = 3.0
"""Time to wait for a prober before its absence is reported: a crawl may be starting."""


@dataclass(frozen=True, slots=True)
class RecheckResult:
    """A target after a requested recheck."""

    asked: "RecheckRecord"
    target: "TargetRecord"
    """The target's present record in the registry."""
    is_new: bool
    """Whether the target was probed since the request."""
    has_prober: bool
    """Whether a prober is running."""

    @property
    def has_new_result(self) -> bool:
        """Whether the target's result comes from a probe that was made since the request."""
        seen, before = self.target.observed, self.asked.observed_at
        return self.is_new and seen is not None and (before is None or seen.observed_at > before)

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the command: SUCCESS if the target is alive, FAILED if it is not.

        NO_ANSWER if it was not probed, or the prober was excluded or refrained.
        """
        from lifesign.census.result_groups import Group, group_of  # noqa: PLC0415 - pydantic takes 60 ms

        life = group_of(self.target.result) if self.has_new_result else Group.UNKNOWN
        codes = {Group.ALIVE: ExitCode.SUCCESS, Group.NOT_ALIVE: ExitCode.FAILED}
        return codes.get(life, ExitCode.NO_ANSWER)


class _Targets(ListsTargets, Protocol):
    """Finds targets: a registry's client, or the database of a crawl."""

    async def get(self, target_id: str) -> "TargetRecord": ...
    async def recheck(self, target_id: str) -> "RecheckRecord": ...


def recheck(
    target: Annotated[
        str,
        typer.Argument(
            metavar="AGENT_ID|URL",
            help="Id of an agent, or the URL that is probed, as its directory lists it.",
        ),
    ],
    *,
    wait_seconds: Annotated[
        float, duration_option("--wait", most_s=600, help="Time to wait for the result, at most 10m.")
    ] = DefaultDuration(60),
    as_json: AsJson = False,
    database: LocalDatabase = None,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> int:
    """Request a probe of an agent now, regardless of its cadence, and show the result.

    The agent's prober probes within seconds; one recheck per minute is allowed. This command does not probe
    by itself: if no prober is running, it says so after some seconds, and at once if the agent asked for a
    longer wait (Retry-After). For an agent that no prober monitors, use `lifesign probe`.

    \b
    Examples:
      lifesign recheck https://agent.example
      lifesign recheck billing-1 --wait 10s
      lifesign recheck https://agent.example --database sqlite:///directory.db

    \b
    The JSON is that of GET /api/v1/targets/{target_id}.
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    if database is not None:
        from lifesign.crawl.local_registry import LocalTargets, run_locally  # noqa: PLC0415
        from lifesign.domain.access.permissions import Role  # noqa: PLC0415 - pydantic takes 60 ms, SQLAlchemy 150

        async def recheck_locally(local: "LocalRegistry") -> "RecheckResult":
            targets = LocalTargets(local)
            return await _recheck(targets, targets.has_prober, target, wait_seconds)

        result = run_locally(database, Role.COORDINATOR, recheck_locally)
    else:
        result = ask(
            lambda client: _recheck(client.targets, partial(_has_prober, client), target, wait_seconds),
            registry=registry,
            key_file=key_file,
            allow_plain_http=allow_plain_http,
        )
    with ignore_broken_pipe():
        if as_json:
            write_json(sys.stdout, result.target.model_dump(mode="json", exclude_none=True))
        else:
            write_target(result.target)
    if result.exit_code is not ExitCode.NO_ANSWER:
        return result.exit_code
    where = f"--registry {registry}" if database is None else f"--database {database}"
    what = "" if result.has_new_result else "That is the earlier result.\n"
    sys.stderr.write(f"{printable(_no_result_reason(result, where, wait_seconds))}\n{what}")
    return result.exit_code


def _no_result_reason(seen: RecheckResult, where: str, wait_seconds: float) -> str:
    """Return why there is no new result; `where` is the option that names the registry."""
    if seen.has_new_result:
        return f"it was probed, and the probe could not measure whether it is alive: {seen.target.result}"
    if seen.is_new:
        return "it was probed without a measurement: it opted out, or the prober is faulty"
    if not seen.has_prober:
        is_local = where.startswith("--database")
        return no_prober_text(NO_CRAWL if is_local else NO_PROBER, where)
    if seen.asked.not_before is not None:
        until = time_text(seen.asked.not_before)
        return f"it asked to be left alone until {until} (Retry-After): it is probed then"
    return f"no probe within {format_duration(wait_seconds)}"


async def _recheck(
    targets: _Targets, has_prober: Callable[[], Awaitable[bool]], given: str, wait_seconds: float
) -> RecheckResult:
    """Request a recheck, and wait for it unless no prober is running, or none may probe in time.

    Raise TargetNotFound or NotFound for an unknown id or URL.
    """
    import asyncio  # noqa: PLC0415 - loaded by now

    request = await with_agent_id(targets.recheck, targets, given)
    if (
        request.not_before is not None
        and (request.not_before - request.recheck_at).total_seconds() > wait_seconds
    ):
        return RecheckResult(
            request, await targets.get(request.target_id), is_new=False, has_prober=await has_prober()
        )
    loop = asyncio.get_running_loop()
    last_there_s = loop.time()
    give_up_s = last_there_s + wait_seconds
    while True:
        # In this order: a prober that leaves after the probe has reported its result.
        is_probed = await has_prober()
        found = await targets.get(request.target_id)
        is_new = found.probed_at != request.observed_at
        now_s = loop.time()
        if is_probed:
            last_there_s = now_s
        if is_new or now_s >= min(give_up_s, last_there_s + JOIN_SECONDS):
            return RecheckResult(request, found, is_new, is_probed)
        await asyncio.sleep(min(POLL_SECONDS, give_up_s - now_s))


async def _has_prober(client: "RegistryClient") -> bool:
    """Return whether a prober is running for a registry, as far as the key may know."""
    from lifesign.client.registry_errors import NotPermitted  # noqa: PLC0415 - loaded by now

    try:
        return bool((await client.shards.show()).probers)
    except NotPermitted:
        # An agent's own key shows only that agent.
        return True


def _state_text(found: "TargetRecord") -> str:
    """Return status and health of a target's agent record; if the health is unknown, with the reason."""
    reason = found.health_unknown_reason
    why = "" if reason is None else f" ({reason})"
    return f"Its status in the registry is {found.agent_status}, its health {found.health_status}{why}."


def write_target(found: "TargetRecord") -> None:
    """Write the last result of a target, and the state of its agent record."""
    from datetime import UTC, datetime  # noqa: PLC0415 - loaded by now

    from lifesign.cli.output.observation_page import write_observation  # noqa: PLC0415

    if found.observed is None or found.result is None:
        sys.stdout.write(f"{printable(found.url)}\nnever probed\n")
        return
    write_observation(
        sys.stdout, found.url, found.result, found.observed, now=datetime.now(UTC), why=found.why
    )
    text = f"Seen {time_text(found.observed.observed_at)}."
    if found.agent_status is not None:
        text += f" {_state_text(found)}"
    sys.stdout.write(printable(text) + "\n")
