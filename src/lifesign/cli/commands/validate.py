"""Is this a health document? Asked on the command line."""

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifesign.cli.options.duration import DefaultDuration, duration_option
from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.option_errors import options
from lifesign.cli.output.broken_pipe import ignore_broken_pipe
from lifesign.cli.output.exit_codes import ExitCode
from lifesign.cli.output.table import write_json
from lifesign.cli.output.terminal import Colour, PageLine, has_colours, listed, write_page
from lifesign.domain.net.allowed_addresses import without_password
from lifesign.domain.text.counts import pluralize
from lifesign.errors import InvalidValue

if TYPE_CHECKING:
    from lifesign.domain.common.finding import Finding

STDIN = "-"


def validate(
    source: Annotated[
        str, typer.Argument(metavar="FILE|URL|-", help="File or URL to read; - is standard input.")
    ],
    *,
    as_json: AsJson = False,
    timeout_seconds: Annotated[
        float,
        duration_option(
            "--timeout",
            more_than_s=0,
            most_s=300,
            help="Time limit for the request if the source is a URL, at most 5m.",
        ),
    ] = DefaultDuration(10),
) -> int:
    """Check whether a file or a URL is a valid health document, and report each fault with its place.

    Every fault has its place (a JSON pointer) and the violated section of the draft. Unusual values are
    warnings. A URL without a path means its /.well-known/agent-health; redirects to other hosts are not
    followed.

    \b
    Examples:
      lifesign validate health.json
      lifesign validate https://agent.example
      curl -s https://agent.example/.well-known/agent-health | lifesign validate -

    \b
    Keys of --json, always present:
      source    as given; for a URL, its final address
      is_valid  true or false
      error     why it could not be read at all, or null
      faults    name, pointer, message, section of each
      warnings  name, pointer, message, section of each
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    if not source:
        raise InvalidValue("FILE|URL|-", source, "the path of a file, a URL with http:// or https://, or -")
    if source.lower().startswith(("http://", "https://")):
        import asyncio  # noqa: PLC0415 - takes 20 ms, which a file need not pay

        with options(url="URL", timeout_seconds="--timeout"):
            verdict = asyncio.run(_validate_url(source, timeout_seconds))
    else:
        verdict = _validate_file(source)
    with ignore_broken_pipe():
        if as_json:
            write_json(sys.stdout, _as_json_object(verdict))
        elif verdict.error is not None:
            lines = [PageLine("", f"{verdict.source}: {verdict.error}")]
            if verdict.hint:
                lines.append(PageLine("", f"hint: {verdict.hint}"))
            write_page(sys.stderr, lines, colours=False)
        else:
            write_page(sys.stdout, _page(verdict), colours=has_colours(sys.stdout))
    return verdict.exit_code


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Findings about one source."""

    source: str
    error: str | None = None
    """Why the document could not be read."""
    hint: str = ""
    """What to do about the error; empty if that is unknown."""
    is_remote: bool = False
    """Whether the source is a URL."""
    faults: tuple["Finding", ...] = ()
    warnings: tuple["Finding", ...] = ()

    @property
    def is_valid(self) -> bool:
        return self.error is None and not self.faults

    @property
    def exit_code(self) -> ExitCode:
        if self.error is not None:
            return ExitCode.NO_ANSWER if self.is_remote else ExitCode.USAGE
        return ExitCode.FAILED if self.faults else ExitCode.SUCCESS


def _validate_bytes(source: str, raw: bytes, warnings: tuple["Finding", ...] = ()) -> _Verdict:
    # pydantic takes 60 ms, which `--help` does not need.
    from lifesign.domain.errors import InvalidDocument  # noqa: PLC0415
    from lifesign.domain.health.document_reader import read_document  # noqa: PLC0415

    try:
        _, findings = read_document(raw)
    except InvalidDocument as error:
        return _Verdict(source, faults=error.faults, warnings=warnings)
    return _Verdict(source, warnings=(*findings, *warnings))


def _validate_file(source: str) -> _Verdict:
    """Read a file or standard input, one byte more than a document may have at most."""
    from lifesign.domain.health.document_reader import MAX_DOCUMENT_BYTES  # noqa: PLC0415 - see _judge

    try:
        if source == STDIN:
            raw = sys.stdin.buffer.read(MAX_DOCUMENT_BYTES + 1)
        else:
            with Path(source).open("rb") as file:
                raw = file.read(MAX_DOCUMENT_BYTES + 1)
    except FileNotFoundError:
        # It may be a URL without its scheme.
        shown = without_password(source)
        return _Verdict(shown, error="cannot be read: no such file; a URL starts with http:// or https://")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return _Verdict(source, error=f"cannot be read: {reason or error}")
    verdict = _validate_bytes(source, raw)
    if verdict.faults and Path(source).suffix in {".yml", ".yaml"}:
        return replace(verdict, hint=f"for a probe definition: lifesign doctor --definition {quote(source)}")
    return verdict


async def _validate_url(url: str, timeout_seconds: float) -> _Verdict:
    from lifesign.cli.commands.check import REFUSED_HINT  # noqa: PLC0415 - only for a URL
    from lifesign.client.health import fetch_document  # noqa: PLC0415 - aiohttp takes 200 ms
    from lifesign.domain.observation.results import ResultClass  # noqa: PLC0415 - see above

    answer, warnings = await fetch_document(url, timeout_seconds=timeout_seconds)
    if answer.reason:
        hint = REFUSED_HINT if answer.result is ResultClass.REFUSED else ""
        return _Verdict(str(answer.url), error=f"cannot be read: {answer.reason}", hint=hint, is_remote=True)
    return _validate_bytes(str(answer.url), answer.body, warnings)


def _as_json_object(verdict: _Verdict) -> dict[str, Any]:
    return {
        "source": verdict.source,
        "is_valid": verdict.is_valid,
        "error": verdict.error,
        "faults": [asdict(fault) for fault in verdict.faults],
        "warnings": [asdict(warning) for warning in verdict.warnings],
    }


def _page(verdict: _Verdict) -> Iterator[PageLine]:
    yield from listed("fault", map(str, verdict.faults), Colour.RED)
    yield from listed("warning", map(str, verdict.warnings), Colour.YELLOW)
    if verdict.is_valid:
        yield PageLine("", f"{verdict.source}: a valid health document", Colour.GREEN)
    else:
        yield PageLine("", f"{verdict.source}: {pluralize(len(verdict.faults), 'fault')}", Colour.RED)
        if verdict.hint:
            yield PageLine("hint", verdict.hint)
