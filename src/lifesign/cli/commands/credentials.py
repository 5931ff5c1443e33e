"""Commands about the credentials of a probe definition."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lifesign.cli.options.json_option import AsJson
from lifesign.cli.output.broken_pipe import ignore_broken_pipe
from lifesign.cli.output.exit_codes import ExitCode
from lifesign.cli.output.terminal import Colour, PageLine, has_colours, write_page
from lifesign.errors import InvalidValue

if TYPE_CHECKING:
    from yarl import URL

    from lifesign.prober.definition.credentials import CredentialSettings
    from lifesign.prober.definition.models import ProbeDefinition
    from lifesign.prober.probe.credential_trial import Trial, TrialStep

EXIT_CODES = {
    "works": ExitCode.SUCCESS,
    "not_needed": ExitCode.SUCCESS,
    "fault": ExitCode.FAILED,
    "unknown": ExitCode.NO_ANSWER,
}
"""Exit code by the verdict of a trial."""
_COLOURS = {"ok": Colour.GREEN, "fault": Colour.RED, "unknown": Colour.YELLOW}
_CONTEXT = {"help_option_names": ["-h", "--help"]}

credentials = typer.Typer(
    name="credentials",
    help="Test the credentials of a probe definition.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


# A group of one command would be that command.
@credentials.callback()
def _group() -> None:
    pass


@credentials.command("test", context_settings=_CONTEXT)
def try_one(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the credential in the definition.")],
    *,
    definition: Annotated[
        Path, typer.Option("--definition", metavar="FILE", help="Probe definition with the credential.")
    ],
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="URL to request, such as that of the agent's interface. Without it: origin and path of the "
            "credential.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Test one credential: read its secret, and request a URL without it and with it.

    Each step is shown with its result; the secret never is. Nothing is stored. Both requests are GET
    requests. Most A2A agents answer 404 at their origin: name the URL of the agent's interface with --url.

    \b
    Examples:
      lifesign credentials test lab --definition lab.yml
      lifesign credentials test lab --definition lab.yml --url https://lab.example/rpc

    \b
    Verdicts and exit codes:
      works       0  the server refuses the request without the credential, and accepts it with it
      not_needed  0  the server accepts the request without the credential too: name another --url
      fault       1  the credential is rejected, gets no token, or may not be sent there
      unknown     2  the server does not answer, answers with an error of its own, or with an error
                     such as 404 or 405 that does not depend on the credential: name another --url

    \b
    Keys of --json:
      credential, method, origin, path, url, verdict
      steps       one for each step: name, result (ok, fault or unknown) and text
      hint        what to do, unless the credential works
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    import asyncio  # noqa: PLC0415 - takes 20 ms, which `--help` need not pay

    from yarl import URL  # noqa: PLC0415 - see above

    from lifesign.prober.definition.file import read_definition_file  # noqa: PLC0415 - takes 200 ms

    read = read_definition_file(definition)
    known = {each.name: each for each in read.credentials}
    if name not in known:
        expected = f"one of {', '.join(known)}" if known else f"a credential, and {definition} has none"
        raise InvalidValue("NAME", name, expected)
    chosen = known[name]
    asked = URL(chosen.origin + chosen.path if url is None else url)
    if not asked.absolute:
        raise InvalidValue("--url", url, "a URL such as https://agent.example/rpc")
    trial = asyncio.run(_try(read, chosen, asked))
    with ignore_broken_pipe():
        if as_json:
            _write_json(chosen, asked, trial)
        else:
            write_page(sys.stdout, map(_line, trial.steps), colours=has_colours(sys.stdout))
            sys.stdout.write(f"{trial.verdict}{f': {trial.hint}' if trial.hint else ''}\n")
    return EXIT_CODES[trial.verdict]


async def _try(definition: "ProbeDefinition", chosen: "CredentialSettings", url: "URL") -> "Trial":
    from lifesign.crawl.prober_assembly import open_prober  # noqa: PLC0415 - aiohttp takes 200 ms
    from lifesign.prober.credentials.secret_reader import MISSING_SECRET_HINT, read_secrets  # noqa: PLC0415
    from lifesign.prober.probe.credential_trial import (  # noqa: PLC0415
        StepResult,
        Trial,
        TrialStep,
        TrialVerdict,
        try_credential,
    )

    place = chosen.origin + ("" if chosen.path == "/" else chosen.path)
    steps = [TrialStep("definition", StepResult.OK, f"{chosen.name}: {chosen.method} for {place}")]
    warnings: list[str] = []
    try:
        secrets = read_secrets((chosen,), warnings.append)
    except InvalidValue as error:
        steps.append(TrialStep("secret", StepResult.FAULT, str(error)))
        hint = error.hint or MISSING_SECRET_HINT
        return Trial(verdict=TrialVerdict.FAULT, steps=steps, hint=hint)
    steps.append(TrialStep("secret", StepResult.OK, "; ".join(["read", *warnings])))
    only = definition.model_copy(update={"credentials": (chosen,)})
    async with open_prober(only, secrets=secrets) as opened:
        total_s = definition.timeouts.total_seconds
        trial = await try_credential(opened.fetcher, opened.credentials, url, total_s)
    return Trial(verdict=trial.verdict, steps=[*steps, *trial.steps], hint=trial.hint)


def _line(step: "TrialStep") -> PageLine:
    label = step.name.removeprefix("request_")
    return PageLine(label, f"{step.result}: {step.text}", _COLOURS[step.result])


def _write_json(chosen: "CredentialSettings", url: "URL", trial: "Trial") -> None:
    from lifesign.cli.output.table import write_json  # noqa: PLC0415

    shown = {
        "credential": chosen.name,
        "method": chosen.method,
        "origin": chosen.origin,
        "path": chosen.path,
        "url": str(url),
        "verdict": trial.verdict.value,
        "steps": [asdict(step) for step in trial.steps],
    }
    if trial.hint is not None:
        shown["hint"] = trial.hint
    write_json(sys.stdout, shown)
