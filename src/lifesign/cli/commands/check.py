"""Should I call this agent? Asked on the command line."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urljoin

import typer

from lifesign.cli.commands.probe import KINDS, check_kind
from lifesign.cli.options.duration import DefaultDuration, duration_option
from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.option_errors import options
from lifesign.cli.options.secret_file import read_secret
from lifesign.cli.output.broken_pipe import ignore_broken_pipe
from lifesign.cli.output.table import write_json
from lifesign.cli.output.terminal import Colour, PageLine, has_colours, listed, write_page
from lifesign.domain.net.allowed_addresses import MAX_URL_CHARACTERS
from lifesign.domain.text.counts import pluralize
from lifesign.domain.text.durations import duration_text
from lifesign.domain.text.times import utc_text
from lifesign.errors import InvalidValue
from lifesign.filesystem.core_dumps import forbid_core_dumps

if TYPE_CHECKING:
    from lifesign.client import HealthCheck
    from lifesign.domain.common.finding import Finding
    from lifesign.domain.health.document import HealthDocument

TOKEN_VARIABLE = "LIFESIGN_DETAIL_TOKEN"  # noqa: S105 - the name of it, not the token

EXIT_CODES = {"healthy": 0, "degraded": 1, "unhealthy": 2, "unknown": 3}
"""Exit codes of monitoring plugins: OK, WARNING, CRITICAL, UNKNOWN."""
_COLOURS = {
    "healthy": Colour.GREEN,
    "degraded": Colour.YELLOW,
    "unhealthy": Colour.RED,
    "unknown": Colour.CYAN,
}
_FOOTER = (
    "The result is what the agent reports about itself. It does not prove that the agent can be trusted "
    "(draft 7)."
)

REFUSED_HINT = "check that the agent runs, and that host and port of its URL are right"


def check(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help=(
                "Domain or base URL of the agent, or the URL of its card, its health document or its "
                "MCP endpoint."
            ),
        ),
    ],
    *,
    as_json: AsJson = False,
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar=KINDS, help="Kind of the agent. Without it, the check detects it."),
    ] = None,
    timeout_seconds: Annotated[
        float,
        duration_option(
            "--timeout", more_than_s=0, most_s=300, help="Time limit for all requests together, at most 5m."
        ),
    ] = DefaultDuration(10),
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                f"File with the token for the agent's full health document. Without it: ${TOKEN_VARIABLE}. "
                "It is sent only at or below URL, which then needs https, unless its host is this machine or "
                "an address in --allow-network."
            ),
        ),
    ] = None,
    allow_network: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-network",
            metavar="NETWORK",
            help="Private network to which the agent's redirects may lead; may be repeated.",
        ),
    ] = None,
) -> int:
    """Check an agent's health, and decide whether to call it.

    Reads the agent's card and its health document, with limits of time and size, and decides by appendix A of
    the draft: a failed request means unknown, not unhealthy.

    A URL without a card is asked whether an MCP server answers: by server/discover, else by a handshake. With
    --kind a2a, nothing but GET requests are sent.

    The host of URL may have any address. The agent chooses the targets of its redirects: other hosts are
    contacted only at public addresses, and in networks of --allow-network.

    \b
    Examples:
      lifesign check https://agent.example
      lifesign check agent.example/agents/weather --timeout 3s
      lifesign check https://mcp.example/mcp --kind mcp
      lifesign check https://agent.example --json | jq -r .decision.action

    \b
    Keys of --json, always present; null is what is not known:
      url       as given; https:// before it if it has no scheme
      status    healthy, degraded, unhealthy or unknown, by appendix A of the draft
      decision  action (proceed, proceed_with_caution, avoid, proceed_and_monitor),
                status, reasons, retry_after_seconds
      card      url, result, reason, name, version, provider, generation, findings
      health    url, result, reason, age_seconds, latency_ms
      server    is_mcp, result, reason, generation (stateless, handshake,
                event_stream), version, name, latency_ms: the answer to
                server/discover or initialize; null if neither was sent
      login     schemes, card_schemes and metadata of the login that a refused
                request asks for; metadata is always null: check does not read it
      document  the health document as it was read
      findings  name, pointer, message, section of each oddity, or of each fault
                if health.result is invalid_document
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    # asyncio takes 20 ms and aiohttp 200, which `--help` does not need.
    import asyncio  # noqa: PLC0415

    from lifesign.client import fetch_health  # noqa: PLC0415
    from lifesign.domain.targets.target import with_scheme  # noqa: PLC0415

    check_kind(kind)
    token = _token(token_file)
    entered = with_scheme(url)
    token_name = f"${TOKEN_VARIABLE}" if token_file is None else "--token-file"
    names = {
        "timeout_seconds": "--timeout",
        "allowed_networks": "--allow-network",
        "detail_token": token_name,
    }
    with _as_typed(url), options(**names):
        checked = asyncio.run(
            fetch_health(
                entered,
                timeout_seconds=timeout_seconds,
                detail_token=token,
                allowed_networks=allow_network or (),
                kind=kind,
                identify=True,
            )
        )
    with ignore_broken_pipe():
        if as_json:
            from lifesign.client.check_report import check_report  # noqa: PLC0415 - loaded by now

            write_json(sys.stdout, check_report(checked))
        else:
            lines = page(checked, assumed_for=url if entered != url else None)
            write_page(sys.stdout, lines, colours=has_colours(sys.stdout))
    return EXIT_CODES[checked.decision.status]


@contextmanager
def _as_typed(url: str) -> Iterator[None]:
    """Let InvalidValue for the URL show it without the scheme that was put before it."""
    try:
        yield
    except InvalidValue as error:
        if error.name != "url":
            raise
        # One with credentials is shown without them.
        given = error.given if "@" in url else url[:MAX_URL_CHARACTERS]
        raise InvalidValue("URL", given, error.expected) from None


def _token(file: Path | None) -> str | None:
    if file is None:
        forbid_core_dumps()
        return os.environ.get(TOKEN_VARIABLE) or None
    return read_secret(file, "--token-file", "token")


def page(checked: "HealthCheck", *, assumed_for: str | None = None) -> Iterator[PageLine]:
    """Return the text that `lifesign check` prints. `assumed_for`: the URL if it was given without https."""
    from lifesign.domain.observation.decision import age_text  # noqa: PLC0415 - pydantic takes 60 ms

    decision, document = checked.decision, checked.document
    card_name = checked.card.name if checked.card else None
    yield PageLine("agent", card_name or (document.agent_id if document else None) or checked.url)
    action = decision.action.replace("_", " ")
    yield PageLine("status", f"{decision.status}: {action}", _COLOURS[decision.status])
    for reason in decision.reasons:
        yield PageLine("because", reason)
    if decision.retry_after_seconds is not None:
        yield PageLine("ask again", f"in {duration_text(decision.retry_after_seconds)}")
    if document is not None:
        if card_name:
            yield PageLine("id", document.agent_id)
        yield from _details(document)
    if checked.age_seconds is not None:
        yield PageLine("age", age_text(checked.age_seconds).removesuffix(" old"))
    yield PageLine("document", _probe_text(checked.health_url, checked.document_result, checked.latency_ms))
    yield from _card(checked)
    if checked.login is not None and checked.login.text:
        yield PageLine("login", checked.login.text)
    for hint in hints(checked):
        yield PageLine("hint", hint)
    if assumed_for is not None and checked.card is None and document is None:
        yield PageLine("hint", _scheme_hint(assumed_for))
    yield from listed("finding", map(_finding_text, checked.findings))
    if decision.status != "unknown":
        yield PageLine("", _FOOTER, Colour.FAINT)


def _scheme_hint(url: str) -> str:
    """Return the hint for a URL without a scheme, such as `localhost:8000` or `http//localhost:8000`."""
    scheme, slashes, _ = url.partition("//")
    if slashes and scheme.lower() in {"http", "https"}:
        return f"a colon is missing after {scheme}"
    return "https:// was assumed; if the agent speaks plain HTTP, write http:// in front"


def hints(checked: "HealthCheck") -> Iterator[str]:
    """Yield hints for people if the agent could not be reached, or if its document is incomplete."""
    from lifesign.domain.health.inspection import read_inspection  # noqa: PLC0415 - see page
    from lifesign.domain.health.status import MINIMUM_SAMPLES  # noqa: PLC0415 - see page
    from lifesign.domain.observation.results import ResultClass  # noqa: PLC0415 - see page

    document = checked.document
    if document is None:
        if ResultClass.BLOCKED_ADDRESS in {checked.document_result, checked.card_result}:
            yield "if the redirect leads to a network of your own, add --allow-network NETWORK"
        if ResultClass.REFUSED in {checked.document_result, checked.card_result}:
            yield REFUSED_HINT
        yield from _hints_to_probe(checked)
        return
    calibration, age_s, refresh_in_s = document.calibration, checked.age_seconds, checked.refresh_in_seconds
    is_new = calibration is not None and calibration.sample_count < MINIMUM_SAMPLES
    # The header Date has whole seconds: the age of a new document may be negative by less than one.
    if is_new and age_s is not None and age_s > -1 and refresh_in_s:
        yield (
            f"this document is {duration_text(max(age_s, 0))} old and does not show later requests; check "
            f"again in {duration_text(refresh_in_s + 1)}"
        )
    note = read_inspection(document.extensions)
    if note is not None and (compressed := note.tally.not_inspected.get("compressed")):
        yield (
            f"{pluralize(compressed, 'answer')} reached AgentHealthMiddleware compressed and could not "
            "be inspected; put AgentHealthMiddleware inside the compression"
        )


def _hints_to_probe(checked: "HealthCheck") -> Iterator[str]:
    """Say which command finds out more about an agent without a readable document."""
    from lifesign.domain.observation.results import ResultClass  # noqa: PLC0415 - see page

    answer = None if checked.server is None else checked.server.answer.result
    is_gated = ResultClass.GATED in {checked.card_result, checked.document_result}
    if checked.is_server and answer is ResultClass.OK:
        yield f"to measure this MCP server and its tools from outside: {_probe_command(checked.url)}"
    elif checked.is_server and answer is ResultClass.GATED:
        command = _probe_command(checked.url, "--kind mcp --credential FILE")
        yield f"to measure this MCP server behind its login: {command}"
    elif answer is ResultClass.GATED:
        yield "a POST to this URL asks for a login; if an MCP server is behind it, add --kind mcp"
    elif is_gated:
        command = _probe_command(checked.url, "--credential FILE")
        yield f"to measure this agent behind its login: {command} (for an MCP server, add --kind mcp)"
    elif checked.document_result is ResultClass.NOT_AN_AGENT and checked.card is not None:
        yield f"to measure this agent from outside: {_probe_command(checked.url)}"
    elif checked.document_result is ResultClass.NOT_AN_AGENT:
        endpoint = urljoin(checked.url, "/mcp")
        example = "" if checked.url == endpoint else f", such as {endpoint}"
        yield f"if an agent or an MCP server answers at another path, pass its URL{example}"


def _probe_command(url: str, more: str = "") -> str:
    """Return the command that probes a URL, with the network of an address that is not public."""
    from lifesign.domain.net.network_class import range_to_allow  # noqa: PLC0415 - see page
    from lifesign.domain.targets.target import host_of  # noqa: PLC0415 - see page

    network = range_to_allow(host_of(url))
    allow = "" if network is None else f"--allow-network {network}"
    return " ".join(filter(None, ("lifesign probe", quote(url), more, allow)))


def _details(document: "HealthDocument") -> Iterator[PageLine]:
    """Return the numbers of a document; absent ones are omitted."""
    from lifesign.domain.observation.decision import shown_ratio  # noqa: PLC0415 - see page

    health, calibration, decay = document.health, document.calibration, document.decay
    if calibration is not None:
        ratios = (("answered", calibration.response_ratio), ("failed", calibration.error_ratio))
        known = [f"{shown_ratio(ratio)} {name}" for name, ratio in ratios if ratio is not None]
        window = duration_text(calibration.measurement_window_seconds)
        yield PageLine("ratios", ", ".join(known) or ("left out" if calibration.sample_count else "none yet"))
        yield PageLine("samples", f"{calibration.sample_count} within {window}")
        latencies = (("p50", calibration.latency_p50_ms), ("p99", calibration.latency_p99_ms))
        parts = [f"{name} {latency:.6g} ms" for name, latency in latencies if latency is not None]
        if parts:
            yield PageLine("latency", ", ".join(parts))
    if decay is not None:
        yield PageLine("trend", decay.calibration_trend)
    if health.uptime_seconds is not None:
        yield PageLine("uptime", duration_text(health.uptime_seconds))
    if health.last_healthy_at is not None:
        yield PageLine("healthy at", utc_text(health.last_healthy_at, "seconds"))


def _card(checked: "HealthCheck") -> Iterator[PageLine]:
    if checked.is_server:
        yield from _server(checked)
        return
    yield PageLine("card", _probe_text(checked.card_url, checked.card_result, None))
    if checked.card is None:
        # Otherwise it is already among the reasons.
        if all(checked.card_reason not in reason for reason in checked.decision.reasons):
            yield PageLine("card", checked.card_reason)
        return
    facts = (
        ("version", checked.card.version),
        ("by", checked.card.provider),
        ("A2A", checked.card.generation),
    )
    if text := ", ".join(f"{name} {value}" for name, value in facts if value):
        yield PageLine("card", text)
    yield from listed("of the card", map(_finding_text, checked.card.findings))


def _server(checked: "HealthCheck") -> Iterator[PageLine]:
    server = checked.server
    if server is None:
        yield PageLine("endpoint", f"{checked.url} (an MCP server)")
        return
    answer = server.answer
    yield PageLine("endpoint", _probe_text(checked.url, answer.result, answer.latency_ms or None))
    if server.generation is not None:
        generation = server.generation.replace("_", " ")
        facts = (server.version, generation, server.name)
        yield PageLine("MCP", ", ".join(fact for fact in facts if fact))


def _finding_text(finding: "Finding") -> str:
    section = f" [{finding.section}]" if finding.section else ""
    # A finding without a place concerns the whole document, or the connection.
    return f"{finding.name}: {finding}" if finding.pointer else f"{finding.name}: {finding.message}{section}"


def _probe_text(url: str | None, result: str, latency_ms: float | None) -> str:
    took = "" if latency_ms is None else f" in {latency_ms:.0f} ms"
    return f"{url or 'not requested'} ({result.replace('_', ' ')}{took})"
