"""Trial of one credential: the same request without it and with it, as steps that an operator reads.

A step names what was found and never contains a secret. Steps after one that failed are absent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Final

from yarl import URL

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.credentials.acceptance import FAULTS, CredentialState
from lifesign.domain.credentials.advice import fault_advice
from lifesign.domain.credentials.request_scope import REJECTED, CredentialScope, scope_for
from lifesign.domain.observation.results import ResultClass
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.network.request import Request
from lifesign.prober.probe.authenticated_request import credential_state, is_page, with_credential_fault
from lifesign.prober.probe.session import Fetches
from lifesign.prober.secrets.credential_store import Credential, CredentialStore

_NAMES_DIFFER: Final = "localhost and 127.0.0.1 differ"
_PLACE_HINT: Final = f"pass a --url below origin and path of the credential ({_NAMES_DIFFER})"
_URL_HINT: Final = (
    "pass the URL of the agent's interface as --url (the card names it), "
    "or run: lifesign probe --definition FILE"
)
_SIGN_IN_HINT: Final = (
    "the server answers as if to sign in, also with the credential: compare it with the provider's, or pass "
    "another URL of the agent as --url"
)
_OTHER_NAME_HINT: Final = (
    "if the redirect leads to another name of the same server, use that name in origin and --url "
    f"({_NAMES_DIFFER})"
)
_CARD_HINT: Final = (
    "the agent card decides where an API key is sent, and this command reads no card: "
    "run lifesign probe --definition FILE, or set place and name of api_key"
)
_TLS_HINT: Final = "look at the certificate of the server, and at ca_file of the credential"
_BROKEN_HINT: Final = "look at the log of the server: it closed the connection, or does not speak HTTP"
_CERTIFICATE_HINT: Final = (
    "a server that does not accept a client certificate may answer so: compare it with the authorities "
    "that the server accepts"
)
_MIN_ERROR: Final = 400
_CONNECTED: Final = frozenset({ResultClass.GATED, ResultClass.HTTP_ERROR})
"""Results without a status that show that the server was reached."""
_NOT_ALLOWED: Final = frozenset({ResultClass.BLOCKED_ADDRESS, ResultClass.NOT_MEASURED})


class StepResult(StrEnum):
    """Result of one step of a credential's test."""

    OK = "ok"
    FAULT = "fault"
    UNKNOWN = "unknown"
    """The step proves nothing about the credential."""


class TrialVerdict(StrEnum):
    """Verdict of a credential's test: whether the credential works."""

    WORKS = "works"
    NOT_NEEDED = "not_needed"
    """The server accepts the same request without the credential."""
    FAULT = "fault"
    """The credential was rejected, gets no token or may not be sent there."""
    UNKNOWN = "unknown"
    """The server does not answer, or its answer does not show whether it accepted the credential.

    An error such as 404 or 405 with and without the credential shows nothing: many servers look at path and
    method first.
    """


@fast_dataclass()
class TrialStep:
    """One step of a credential's test, with its result."""

    name: str
    result: StepResult
    text: str
    """The finding, for people."""


@fast_dataclass(kw_only=True)
class Trial:
    """Result of a credential's test: all steps, and the verdict."""

    verdict: TrialVerdict
    steps: list[TrialStep]
    hint: str | None = None
    """What to do; None if the credential works."""


async def try_credential(
    fetcher: Fetches,
    credentials: CredentialStore,
    url: URL,
    seconds: float,
    scopes: Sequence[CredentialScope] = (),
) -> Trial:
    """Test a credential: request a URL without it and with it. `seconds` limits each request.

    `scopes`: those of all credentials of the definition, of which another may be sent to the URL.
    """
    credential, longest = credentials.for_url(str(url)), scope_for(scopes, str(url))
    if credential is not None and longest is not None and longest.name != credential.name:
        text = f"the prober sends the credential {longest.name} to {url}, because its path is longer"
        return Trial(
            verdict=TrialVerdict.FAULT,
            steps=[TrialStep("place", StepResult.FAULT, text)],
            hint=f"pass a --url that the path of {longest.name} does not cover",
        )
    if credential is None or (scopes and longest is None):
        elsewhere = TrialStep("place", StepResult.FAULT, f"the credential is not sent to {url}")
        return Trial(verdict=TrialVerdict.FAULT, steps=[elsewhere], hint=_PLACE_HINT)
    steps = [TrialStep("place", StepResult.OK, f"the credential may be sent to {url}")]
    without = await _ask(fetcher, url, seconds, credential, is_sent=False)
    if (step := await _token_step(credential, seconds)) is not None:
        steps.append(step)
        if step.result is not StepResult.OK:
            hint = fault_advice(CredentialState.TOKEN_ERROR, step.text)
            return Trial(verdict=TrialVerdict.FAULT, steps=steps, hint=hint)
    kept_out = partial(_other_place, credential.scope, scopes)
    with_it = await _ask(fetcher, url, seconds, credential, kept_out=kept_out)
    steps += _connection_steps(url, with_it)
    if steps[-1].result is StepResult.OK:
        steps.append(TrialStep("request_without", StepResult.OK, _answer_text(without)))
        steps.append(_request_step(with_it, credential))
    verdict = _verdict(steps[-1], without, with_it)
    return Trial(verdict=verdict, steps=steps, hint=_hint(verdict, steps[-1], with_it, credential))


async def _other_place(own: CredentialScope, scopes: Sequence[CredentialScope], target: URL) -> str | None:
    """Return why a redirect is not followed with a credential; None if the credential is sent there."""
    longest = scope_for((own, *scopes), str(target))
    is_own = longest is not None and longest.name == own.name
    return None if is_own else f"the credential {own.name} is not sent"


async def _ask(
    fetcher: Fetches,
    url: URL,
    seconds: float,
    credential: Credential,
    *,
    is_sent: bool = True,
    kept_out: Callable[[URL], Awaitable[str | None]] | None = None,
) -> Fetched:
    deadline_s = asyncio.get_running_loop().time() + seconds
    request = Request(
        url=url,
        max_bytes=0,
        is_head_enough=True,
        accept="*/*",
        deadline_s=deadline_s,
        credential=credential if is_sent else None,
        # The server may have received the secret before, and repeat it in any answer.
        known_credentials=(credential,),
        kept_out=kept_out,
    )
    return await fetcher.fetch(request)


async def _token_step(credential: Credential, seconds: float) -> TrialStep | None:
    """Request an access token, if the credential needs one."""
    if credential.tokens is None:
        return None
    if await credential.tokens.prepare(seconds):
        return TrialStep("token", StepResult.OK, "the token endpoint issued an access token")
    why = credential.fault or "the token endpoint has not answered in time"
    return TrialStep("token", StepResult.FAULT, str(why))


def _connection_steps(url: URL, fetched: Fetched) -> list[TrialStep]:
    """Return whether the address is allowed, and whether the connection is encrypted."""
    if fetched.result in _NOT_ALLOWED and fetched.status is None:
        return [TrialStep("address", StepResult.FAULT, fetched.reason)]
    if fetched.result is ResultClass.TLS_FAILURE:
        return [TrialStep("tls", StepResult.FAULT, fetched.reason)]
    if fetched.status is None and fetched.result not in _CONNECTED:
        text = f"{fetched.result}{': ' if fetched.reason else ''}{fetched.reason}"
        return [TrialStep("address", StepResult.UNKNOWN, text)]
    steps = [TrialStep("address", StepResult.OK, f"{fetched.address or url.host} may be contacted")]
    if url.scheme != "https":
        text = "plain HTTP: the credential is sent only to a private network of networks.allow"
        return [*steps, TrialStep("tls", StepResult.OK, text)]
    ends = fetched.certificate_expires_at
    if fetched.status is None and ends is None:
        return steps
    text = "the certificate is trusted" + ("" if ends is None else f" and ends on {ends:%Y-%m-%d}")
    return [*steps, TrialStep("tls", StepResult.OK, text)]


def _request_step(fetched: Fetched, credential: Credential) -> TrialStep:
    """Return how the server answered the request with the credential."""
    if fetched.status is None and fetched.result is ResultClass.HTTP_ERROR:
        return TrialStep("request_with", StepResult.UNKNOWN, _answer_text(fetched))
    if fetched.credential is None:
        text = "the credential was not sent: it needs TLS, or a private network of networks.allow"
        return TrialStep("request_with", StepResult.FAULT, text)
    result, reason = with_credential_fault(fetched, fetched.result, "")
    state = credential_state(fetched, result)
    if state in FAULTS:
        sent = "" if credential.sent_in is None else f", sent in {credential.sent_in}"
        outcome = StepResult.UNKNOWN if credential.follows_card else StepResult.FAULT
        return TrialStep("request_with", outcome, reason + sent)
    outcome = StepResult.UNKNOWN if state is None else StepResult.OK
    return TrialStep("request_with", outcome, _answer_text(fetched))


def _answer_text(fetched: Fetched) -> str:
    if fetched.status is None:
        return f"no HTTP answer: {fetched.reason}" if fetched.reason else "no HTTP answer"
    status = f"HTTP {fetched.status}"
    if not fetched.reason or fetched.reason.startswith(status):
        return fetched.reason or status
    return f"{status} ({fetched.reason})"


def _verdict(last: TrialStep, without: Fetched, with_it: Fetched) -> TrialVerdict:
    if last.result is StepResult.FAULT:
        return TrialVerdict.FAULT
    if last.result is StepResult.UNKNOWN:
        return TrialVerdict.UNKNOWN
    if without.status is None or without.status in REJECTED or without.result is ResultClass.GATED:
        return TrialVerdict.WORKS
    if _may_be_sign_in(without):
        return TrialVerdict.UNKNOWN if _may_be_sign_in(with_it) else TrialVerdict.WORKS
    is_accepted = with_it.status is not None and with_it.status < _MIN_ERROR
    return TrialVerdict.NOT_NEEDED if is_accepted else TrialVerdict.UNKNOWN


def _may_be_sign_in(fetched: Fetched) -> bool:
    """Return whether an answer may be that of a single sign-on proxy: a redirect, or a page."""
    return fetched.result is ResultClass.REDIRECT_REFUSED or is_page(fetched)


def _hint(verdict: TrialVerdict, last: TrialStep, with_it: Fetched, credential: Credential) -> str | None:
    """Return a hint for the operator after a verdict; None if the credential works."""
    if verdict is TrialVerdict.WORKS:
        return None
    match verdict, last.name:
        case TrialVerdict.FAULT, "request_with" if with_it.credential is not None:
            return fault_advice(CredentialState.CREDENTIALS_REJECTED, last.text)
        case TrialVerdict.FAULT, "tls":
            return f"{_TLS_HINT}; {_CERTIFICATE_HINT}" if credential.has_certificate else _TLS_HINT
        case TrialVerdict.FAULT, _:
            return "allow the address in networks.allow, or use https"
        case _:
            return _unclear_hint(last, with_it, credential)


def _unclear_hint(last: TrialStep, with_it: Fetched, credential: Credential) -> str:
    """Return a hint after answers that do not show whether the server accepts the credential."""
    if last.name == "address":
        return "look at the address and the network of the server"
    if with_it.status is None:
        return _CERTIFICATE_HINT if credential.has_certificate else _BROKEN_HINT
    if with_it.result is ResultClass.REDIRECT_REFUSED:
        return f"{_SIGN_IN_HINT}; {_OTHER_NAME_HINT}"
    if _may_be_sign_in(with_it):
        return _SIGN_IN_HINT
    return _CARD_HINT if credential.follows_card and with_it.status in REJECTED else _URL_HINT
