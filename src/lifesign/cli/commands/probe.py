"""Command that probes agents now."""

import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifesign.cli.options.credential_file import CredentialFile, with_credentials
from lifesign.cli.options.duration import duration_option
from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.option_errors import options
from lifesign.cli.output.broken_pipe import ignore_broken_pipe
from lifesign.cli.output.error_lines import complain
from lifesign.cli.output.exit_codes import ExitCode
from lifesign.errors import InvalidValue
from lifesign.serving.ending_signals import run_until_signal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from lifesign.domain.observation.results import Observation
    from lifesign.prober.definition.credentials import CredentialSettings
    from lifesign.prober.definition.models import ProbeDefinition
    from lifesign.prober.registry_exchange.ledger import ProbeReport

MAX_URLS = 100
"""Maximum number of URLs per command; `lifesign census` accepts more."""
AT_ONCE = 10
MIN_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS = 0.05, 120.0
"""Limits of a time limit in a probe definition, whose import takes 200 ms."""

_NO_MESSAGE_HINT = "leave out --message. To call a tool, set ask.call in a definition."

EXIT_CODES = {
    "alive": ExitCode.SUCCESS,
    "not_alive": ExitCode.FAILED,
    "unknown": ExitCode.NO_ANSWER,
}
"""Exit code by the group of a probe's result. For several targets, the first of 1, 2 and 0 that occurs."""

KINDS = "a2a|mcp"
"""Kinds of targets, as an option shows them."""

Timeout = Annotated[
    float | None,
    duration_option(
        "--timeout",
        least_s=MIN_TIMEOUT_SECONDS,
        most_s=MAX_TIMEOUT_SECONDS,
        help="Time limit for each request. Without it: 20s, and 10s until the answer begins.",
    ),
]


def probe(
    urls: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="URL...",
            help=(
                "Agents to probe: a domain, a base URL or the URL of a card. Without it: the targets of "
                "--definition."
            ),
        ),
    ] = None,
    *,
    as_json: AsJson = False,
    timeout_seconds: Timeout = None,
    message: Annotated[
        str | None,
        typer.Option(
            "--message",
            metavar="TEXT",
            help="Message to send to every agent; it may cost the agent's owner money.",
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar=KINDS, help="Kind of the targets. Without it, the prober detects it."),
    ] = None,
    allow_network: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-network",
            metavar="NETWORK",
            help="Private network that the prober may contact, such as 127.0.0.0/8; may be repeated.",
        ),
    ] = None,
    definition: Annotated[
        Path | None,
        typer.Option(
            "--definition",
            metavar="FILE",
            help=("Probe definition. Its settings apply unless an option of this command overrides them."),
        ),
    ] = None,
    credential: CredentialFile = None,
) -> int:
    """Probe agents once: card, interface and health document, with the result and the latency of each.

    An MCP server gets `server/discover`, or a handshake. A tool is called only if a definition names it.

    The command needs no file, no database and no registry, and stores nothing. Private addresses are
    contacted only in networks of --allow-network.

    \b
    Examples:
      lifesign probe https://agent.example
      lifesign probe agent.example other.example --timeout 5s
      lifesign probe https://agent.example --message "Are you there?"
      lifesign probe https://mcp.example/mcp --kind mcp
      lifesign probe http://127.0.0.1:8000 --allow-network 127.0.0.0/8
      lifesign probe https://agent.example --credential credentials.yml
      lifesign probe --definition servers.yml
      lifesign probe https://agent.example --json | jq -r .targets[].result

    \b
    Keys of --json:
      targets   one for each URL, in the given order, without repetitions:
        url          normalised URL           group     alive, not_alive or unknown
        result       result of the probe      requests  number of requests
        observation  all results; see schemas/observation.schema.json
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    from datetime import UTC, datetime  # noqa: PLC0415

    from lifesign.census.result_groups import GROUPS  # noqa: PLC0415 - pydantic takes 60 ms

    read = None if definition is None else _read(definition, needs_trust=credential is not None)
    probed = urls or _targets_of(definition, read)
    if len(probed) > MAX_URLS:
        raise InvalidValue("URL...", len(probed), f"at most {MAX_URLS}; lifesign census FILE accepts more")
    requested = _definition(
        probed, definition, read, timeout_seconds, message, networks=allow_network or (), kind=kind
    )
    if message is not None:
        _refuse_message_to_mcp(requested, message)
    used = with_credentials(requested, credential)
    reports = run_until_signal(_probe_all(used))
    with ignore_broken_pipe():
        if as_json:
            from lifesign.cli.output.table import write_json  # noqa: PLC0415

            write_json(sys.stdout, {"targets": [_as_json_object(report) for report in reports]})
        else:
            from lifesign.cli.output.observation_page import write_observation  # noqa: PLC0415
            from lifesign.cli.output.terminal import PageLine, write_page  # noqa: PLC0415

            for place, report in enumerate(reports):
                if place:
                    sys.stdout.write("\n")
                observation = report.observation
                write_observation(
                    sys.stdout,
                    observation.target_url or "",
                    observation.result,
                    observation,
                    now=datetime.now(UTC),
                )
                lines = [
                    PageLine("hint", hint)
                    for hint in hints(observation, probed, definition, used.credentials)
                ]
                write_page(sys.stdout, lines, colours=False)
    code = exit_code([GROUPS[report.observation.result] for report in reports])
    has_failed = any(each.has_failed for report in reports for each in report.observation.assertions or ())
    return ExitCode.FAILED if has_failed else code


def hints(
    seen: "Observation",
    typed: "Sequence[str]",
    definition: Path | None = None,
    credentials: "Sequence[CredentialSettings]" = (),
) -> "Iterator[str]":
    """Yield hints if the address was blocked, a login was required, or the wrong scheme was assumed."""
    from lifesign.domain.net.network_class import range_to_allow  # noqa: PLC0415 - see probe
    from lifesign.domain.observation.results import ResultClass  # noqa: PLC0415
    from lifesign.domain.targets.target import host_of, origin_of, read_target, with_scheme  # noqa: PLC0415
    from lifesign.prober.definition.unused_credentials import login_hint  # noqa: PLC0415

    # Results of a TLS handshake with a server that speaks plain HTTP, or none at all.
    without_tls = {ResultClass.TLS_FAILURE, ResultClass.REFUSED, ResultClass.TIMEOUT}
    url = seen.target_url or ""
    assumed = next((text for text in typed if with_scheme(text) != text and read_target(text) == url), None)
    is_blocked = seen.result is ResultClass.BLOCKED_ADDRESS
    if is_blocked and (network := range_to_allow(host_of(url))) is not None:
        yield f"if this network is your own, add {_place_to_allow(network, definition)}"
    elif is_blocked:
        place = _place_to_allow("NETWORK", definition)
        yield f"if the address is in a network of your own, add {place}, such as 10.1.0.0/16"
    if seen.layers_with(ResultClass.GATED):
        login = None if seen.login is None else seen.login.origin
        yield (
            login_hint(url, login or origin_of(url), credentials)
            or "if you have a credential for this login, add --credential FILE"
        )
    if assumed is not None and (is_blocked or seen.result in without_tls):
        yield f"https:// was assumed; for plain HTTP write http://{assumed}"


def _place_to_allow(network: str, definition: Path | None) -> str:
    option = f"--allow-network {network}"
    return option if definition is None else f"{option}, or {network} to networks.allow of {definition}"


def exit_code(groups: "Sequence[str]") -> ExitCode:
    """Return the exit code for the groups (alive, not alive, unknown) of the targets' results."""
    codes = {EXIT_CODES[group] for group in groups}
    return next((code for code in (ExitCode.FAILED, ExitCode.NO_ANSWER) if code in codes), ExitCode.SUCCESS)


def check_kind(kind: str | None) -> None:
    """Raise InvalidValue unless the option --kind is absent or names a kind."""
    if kind not in {None, *KINDS.split("|")}:
        raise InvalidValue("--kind", kind, "a2a or mcp")


def _read(file: Path, *, needs_trust: bool) -> "ProbeDefinition":
    """Read a definition, once: it may be a pipe."""
    from lifesign.prober.definition.file import read_definition_file  # noqa: PLC0415 - see probe

    return read_definition_file(file, needs_trust=needs_trust)


def _targets_of(file: Path | None, read: "ProbeDefinition | None") -> "Sequence[str]":
    """Return the targets that a definition names itself; InvalidValue without any."""
    if file is None or read is None:
        raise InvalidValue("URL...", None, "the URL of an agent, or --definition FILE")
    if urls := read.target_urls:
        return urls
    hint = f"for the agents of its directories: lifesign crawl {quote(str(file))} --once"
    raise InvalidValue("URL...", None, f"the URL of an agent ({file} names no targets)", hint=hint)


def _definition(
    urls: "Sequence[str]",
    file: Path | None,
    read: "ProbeDefinition | None",
    timeout_seconds: float | None,
    message: str | None,
    *,
    networks: "Sequence[str]",
    kind: str | None,
) -> "ProbeDefinition":
    """Return the definition; the command line takes precedence over the file, which was read as `read`."""
    from lifesign.prober.definition.models import ProbeDefinition  # noqa: PLC0415 - see probe

    check_kind(kind)
    with options(**{"network": "--allow-network", "ask.message.text": "--message"}):
        given = ProbeDefinition.for_urls(
            urls, networks=networks, message=message, total_seconds=timeout_seconds, kind=kind
        )
    if file is None or read is None:
        return given
    settings = read.settings_by_url
    _warn_of_unused_assertions(file, read, {target.url for target in given.targets})
    targets = tuple(
        known
        if (known := settings.get(target.url)) is not None and kind is None
        else (known or target).model_copy(update={"kind": target.kind})
        for target in given.targets
    )
    changed: dict[str, Any] = {"targets": targets, "directories": ()}
    if timeout_seconds is not None:
        changed["timeouts"] = read.timeouts.model_copy(update=read.timeouts.within(timeout_seconds))
    if message is not None:
        asks_this = {"message": given.ask.message}
        changed["ask"] = read.ask.model_copy(update=asks_this)
        changed["targets"] = tuple(
            target
            if target.ask is None
            else target.model_copy(update={"ask": target.ask.model_copy(update=asks_this)})
            for target in targets
        )
    if networks:
        allowed = (*read.networks.allow, *given.networks.allow)
        changed["networks"] = read.networks.model_copy(update={"allow": allowed})
    return read.model_copy(update=changed)


def _refuse_message_to_mcp(requested: "ProbeDefinition", message: str) -> None:
    """Refuse a message to a target whose kind accepts none. Raises InvalidValue."""
    if any(target.kind == "mcp" for target in requested.targets):
        raise InvalidValue("--message", message, "no message for an MCP server", hint=_NO_MESSAGE_HINT)


def _warn_of_unused_assertions(file: Path, read: "ProbeDefinition", probed: "AbstractSet[str]") -> None:
    """Write a warning if the definition has assertions, and lists none of the targets of the command."""
    asserted = [target.url for target in read.targets if target.assertions]
    if asserted and probed.isdisjoint(read.target_urls):
        text = f"warning: no assertion is checked: those of {file} belong to {asserted[0]}"
        more = f" and {len(asserted) - 1} more" if len(asserted) > 1 else ""
        complain(text + more, hint="pass the URL exactly as the definition spells it")


async def _probe_all(definition: "ProbeDefinition") -> "list[ProbeReport]":
    """Probe every target of a definition once, in their order."""
    import asyncio  # noqa: PLC0415 - see probe
    import time  # noqa: PLC0415

    from lifesign.crawl.prober_assembly import open_prober  # noqa: PLC0415 - aiohttp takes 200 ms
    from lifesign.domain.observation.probe_memory import ProbeMemory  # noqa: PLC0415
    from lifesign.domain.targets.target import target_id  # noqa: PLC0415
    from lifesign.prober.registry_exchange.ledger import TargetEntry  # noqa: PLC0415

    turn = asyncio.Semaphore(AT_ONCE)
    async with open_prober(definition) as opened:

        async def look(url: str) -> "ProbeReport":
            entry = TargetEntry(subject_id=target_id(url), url=url, memory=ProbeMemory())
            async with turn:
                return await opened.prober.probe(entry, time.time())

        return await asyncio.gather(*map(look, definition.target_urls))


def _as_json_object(report: "ProbeReport") -> dict[str, Any]:
    """Return the observation of one target, in the form that `probe --help` describes."""
    from lifesign.census.result_groups import GROUPS  # noqa: PLC0415 - see probe

    observation: Observation = report.observation
    return {
        "url": observation.target_url,
        "group": GROUPS[observation.result],
        "result": observation.result,
        "requests": report.requests,
        "observation": observation.model_dump(mode="json", exclude_none=True),
    }
