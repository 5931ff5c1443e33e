"""Commands about the credentials of a probe definition."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lifesign.cli.options.confirmation import is_confirmed
from lifesign.cli.options.credential_file import chosen_credential
from lifesign.cli.options.duration import DefaultDuration, duration_option
from lifesign.cli.options.json_option import AsJson
from lifesign.cli.output.broken_pipe import ignore_broken_pipe
from lifesign.cli.output.error_lines import complain
from lifesign.cli.output.exit_codes import ExitCode
from lifesign.cli.output.terminal import Colour, PageLine, has_colours, write_page
from lifesign.domain.text.durations import duration_text
from lifesign.errors import InvalidValue
from lifesign.serving.ending_signals import run_until_signal

if TYPE_CHECKING:
    from yarl import URL

    from lifesign.prober.definition.credentials import CredentialSettings, OAuthClient
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
MAX_LOGIN_SECONDS: Final = 1800.0
_CONTEXT = {"help_option_names": ["-h", "--help"]}

credentials = typer.Typer(
    name="credentials",
    help="Test the credentials of a probe definition, and log in with OAuth.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


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
    from lifesign.http_client.redirects import parsed  # noqa: PLC0415 - takes 20 ms, which `--help` need not pay
    from lifesign.prober.definition.file import read_definition_file  # noqa: PLC0415 - takes 200 ms
    from lifesign.prober.definition.unused_credentials import unused_credentials  # noqa: PLC0415

    read = read_definition_file(definition)
    chosen = chosen_credential(read, name, definition)
    try:
        target = parsed(chosen.origin + chosen.path if url is None else url)
    except ValueError:
        target = None
    if target is None or not target.absolute:
        raise InvalidValue("--url", url, "a URL such as https://agent.example/rpc")
    for fault in unused_credentials(read):
        if fault.name == name:
            complain(f"warning: {fault.text}", hint=fault.hint)
    trial = run_until_signal(_try(read, chosen, target))
    if trial.hint is not None:
        named = trial.hint.replace("login NAME", f"login {name}")
        trial = replace(
            trial, hint=named.replace("--definition FILE", f"--definition {quote(str(definition))}")
        )
    with ignore_broken_pipe():
        if as_json:
            _write_json(chosen, target, trial)
        else:
            write_page(sys.stdout, map(_line, trial.steps), colours=has_colours(sys.stdout))
            sys.stdout.write("\n".join([trial.verdict, *([f"hint: {trial.hint}"] if trial.hint else []), ""]))
    return EXIT_CODES[trial.verdict]


@credentials.command("login", context_settings=_CONTEXT)
def log_in_once(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the credential in the definition.")],
    *,
    definition: Annotated[
        Path, typer.Option("--definition", metavar="FILE", help="Probe definition with the credential.")
    ],
    timeout_seconds: Annotated[
        float,
        duration_option(
            "--timeout",
            more_than_s=0,
            most_s=MAX_LOGIN_SECONDS,
            help="Time limit for the login in the browser, at most 30m.",
        ),
    ] = DefaultDuration(300),
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only show the URL; open it in a browser on this machine.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask for confirmation. Required without a terminal.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Log in to an OAuth provider in a browser, and store the refresh token.

    Use it for a provider that requires the consent of a person. The credential must have `oauth2` with
    `grant: refresh_token`, `token_file` and `authorization_url`. The command waits for the redirect
    on a free port of 127.0.0.1, exchanges the code at `token_url`, and writes the refresh token to
    `token_file` (mode 0600). It replaces a token that is already in the file.

    \b
    Examples:
      lifesign credentials login acme --definition acme.yml
      lifesign credentials login acme --definition acme.yml --no-browser --timeout 10m

    \b
    Keys of --json:
      credential, token_file
      fault       why no token was stored; null if one was

    With --json, all else goes to standard error.
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    import asyncio  # noqa: PLC0415 - takes 20 ms, which `--help` need not pay

    from lifesign.crawl.oauth_login import client_for_login, log_in  # noqa: PLC0415 - aiohttp takes 200 ms
    from lifesign.prober.definition.file import read_definition_file  # noqa: PLC0415

    read = read_definition_file(definition)
    chosen = chosen_credential(read, name, definition)
    client = client_for_login(chosen, read)
    stream = sys.stderr if as_json else sys.stdout
    write_page(stream, _login_facts(chosen, client), colours=has_colours(stream))
    if not yes and not is_confirmed("Log in?", reason="The login replaces the refresh token."):
        return ExitCode.FAILED

    def open_url(url: str) -> None:
        stream.write(
            f"Open this URL in a browser on this machine, within {duration_text(timeout_seconds)}:\n{url}\n"
        )
        stream.flush()
        if not no_browser:
            _open_browser(url)

    fault = asyncio.run(
        log_in(
            read,
            chosen,
            timeout_seconds,
            open_url=open_url,
            complain=_warn,
            is_shown_to_all=not no_browser,
        )
    )
    if as_json:
        from lifesign.cli.output.table import write_json  # noqa: PLC0415

        write_json(sys.stdout, {"credential": name, "token_file": str(client.token_file), "fault": fault})
    elif fault is not None:
        _warn(f"the login failed: {fault}")
    else:
        write_page(
            stream,
            [
                PageLine("stored", str(client.token_file), Colour.GREEN),
                PageLine("next", f"lifesign credentials test {name} --definition {definition}"),
            ],
            colours=has_colours(stream),
        )
    return ExitCode.SUCCESS if fault is None else ExitCode.FAILED


def _login_facts(chosen: "CredentialSettings", client: "OAuthClient") -> list[PageLine]:
    """Return the facts that a person checks before the login: credential, provider, scope and others."""
    facts = (
        ("credential", f"{chosen.name} for {chosen.origin}{chosen.path.rstrip('/')}"),
        ("provider", client.issuer or client.authorization_url),
        ("client", client.client_id),
        ("scope", client.scope),
        ("resource", client.resource),
        ("token file", str(client.token_file)),
    )
    return [PageLine(label, text) for label, text in facts if text]


def _open_browser(url: str) -> None:
    """Open a browser. The call returns at once with some browsers, and when they end with others."""
    import threading  # noqa: PLC0415 - loaded by now
    import webbrowser  # noqa: PLC0415 - takes 20 ms

    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def _warn(text: str) -> None:
    sys.stderr.write(f"lifesign: {text}\n")


async def _try(definition: "ProbeDefinition", chosen: "CredentialSettings", url: "URL") -> "Trial":
    from lifesign.crawl.oauth_login import token_tls  # noqa: PLC0415 - aiohttp takes 200 ms
    from lifesign.crawl.prober_assembly import open_prober  # noqa: PLC0415
    from lifesign.prober.probe.credential_trial import (  # noqa: PLC0415
        StepResult,
        Trial,
        TrialStep,
        TrialVerdict,
        try_credential,
    )
    from lifesign.prober.secrets.secret_reader import MISSING_SECRET_HINT, read_secrets  # noqa: PLC0415

    place = chosen.origin + ("" if chosen.path == "/" else chosen.path)
    steps = [TrialStep("definition", StepResult.OK, f"{chosen.name}: {chosen.method} for {place}")]
    warnings: list[str] = []
    # Authorities of any credential apply to all requests to its origin.
    authorities = [each.ca_file for each in definition.credentials if each.origin == chosen.origin]
    chosen = chosen.model_copy(update={"ca_file": next(filter(None, authorities), None)})
    try:
        secrets = read_secrets((chosen,), warnings.append)
        client = chosen.oauth2
        tls = None if client is None else token_tls(client, definition.credentials, warnings.append)
    except InvalidValue as error:
        steps.append(TrialStep("secret", StepResult.FAULT, str(error)))
        hint = error.hint or MISSING_SECRET_HINT
        return Trial(verdict=TrialVerdict.FAULT, steps=steps, hint=hint)
    steps.append(TrialStep("secret", StepResult.OK, "; ".join(["read", *warnings])))
    only = definition.model_copy(update={"credentials": (chosen,)})
    async with open_prober(only, secrets=secrets) as opened:
        if tls is not None:
            opened.credentials.named(chosen.name).token_tls = lambda: tls
        total_s = definition.timeouts.total_seconds
        scopes = [each.scope for each in definition.credentials]
        trial = await try_credential(opened.fetcher, opened.credentials, url, total_s, scopes)
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
