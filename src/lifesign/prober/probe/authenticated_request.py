"""Requests of a probe with a credential: when it is sent, and the meaning of a refusal.

The credential may need an access token that cannot be obtained, or that is rejected.
"""

from dataclasses import replace
from typing import Final, Protocol

from yarl import URL

from lifesign.domain.credentials.acceptance import CredentialState
from lifesign.domain.credentials.challenge import bearer_error
from lifesign.domain.credentials.request_scope import REJECTED
from lifesign.domain.observation.results import CREDENTIAL_FAULTS, ResultClass
from lifesign.http_client.redirects import is_same_origin
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.secrets.credential_store import Credential

UNAUTHORIZED: Final = 401
"""A server that does not accept a token answers with it; 403 means too few rights (RFC 6750 3.1)."""

# The answer of a proxy, or of a limit of requests.
_SAYS_NOTHING: Final = REJECTED | {407, 429}
BAD_REQUEST: Final = 400
"""Answer of nginx to a client without a certificate."""
_SERVER_ERROR: Final = 500
"""Answer of many agents that read the missing header; a proxy answers 502 to 504 in place of an agent."""
_STATED: Final = frozenset({
    ResultClass.NOT_AN_AGENT, ResultClass.INVALID_DOCUMENT, ResultClass.HTTP_ERROR, ResultClass.TOO_LARGE,
    ResultClass.REDIRECT_REFUSED,
})  # fmt: skip
"""Failures that a complete answer may state."""
_WITHOUT_CERTIFICATE: Final = frozenset({
    ResultClass.GATED, ResultClass.TLS_FAILURE, ResultClass.HTTP_ERROR,
})  # fmt: skip
"""Results of a request without the certificate that the server demands."""


class Send(Protocol):
    """A function that sends a request, with a credential or without."""

    async def __call__(self, *, credential: Credential | None = None) -> Fetched | None:
        """Return the answer; None if no request can be sent any more."""
        ...


async def send_with_credential(send: Send, credential: Credential, seconds: float) -> Fetched | None:
    """Send a request with a credential, or without it if no token is obtained within `seconds`.

    A cached token that is rejected is replaced, and the request sent again, at most once.
    """
    tokens = credential.tokens
    if tokens is None:
        return await send(credential=credential)
    token = tokens.token
    if not await tokens.prepare(seconds):
        return _without_token(await send(), credential)
    fetched = await send(credential=credential)
    is_rejected = fetched is not None and fetched.status == UNAUTHORIZED and fetched.credential is not None
    if token is None or fetched is None or not is_rejected:
        return fetched
    if not tokens.drop(token):
        return _without_new_token(fetched, credential)
    if not await tokens.prepare(seconds) or tokens.token == token:
        return _without_new_token(fetched, credential)
    return await send(credential=credential) or fetched


async def send_after_refusal(
    fetched: Fetched, send: Send, url: URL, credential: Credential, seconds: float
) -> Fetched:
    """If `fetched` may be a refusal of a request without credential, send the request again with it.

    A single sign-on proxy may answer with a redirect to its sign-in page, or with the page itself.
    """
    if not _may_be_refusal(fetched, url, credential):
        return fetched
    if credential.tokens is not None and not await credential.tokens.prepare(seconds):
        return _without_token(fetched, credential) or fetched
    again = await send_with_credential(send, credential, seconds) or fetched
    # With a credential, no redirect is followed to another origin, which asked for a login of its own.
    is_of_other = fetched.result is ResultClass.GATED and again.result is ResultClass.REDIRECT_REFUSED
    return fetched if is_of_other else again


def is_page(fetched: Fetched) -> bool:
    """Return whether an answer is an HTML page, such as one to sign in."""
    return fetched.result is ResultClass.OK and fetched.content_type == "text/html"


def with_credential_fault(fetched: Fetched, result: ResultClass, reason: str) -> tuple[ResultClass, str]:
    """Return a layer's result and reason, changed if the request's credential has a fault.

    A refusal of a request with a credential is `credentials_rejected`. So is an answer that the URL or the
    headers are too large: the secret may be longer than the server allows. A refusal of a request without a
    credential, for want of a token, is `token_error`. So is any other failure that an answer to it states, up
    to status 500: a 404, a page or a redirect to a login may hide what is behind the login, and an agent may
    fail without the header. If the prober has a credential that it does not send there, such a failure is
    `not_measured`.
    """
    is_refused = result is ResultClass.GATED and (
        fetched.status in REJECTED or fetched.is_certificate_refused
    )
    note = fetched.token_fault
    if fetched.credential is not None:
        if is_refused or fetched.is_head_too_large:
            text = f"{rejection(fetched)} with credential {fetched.credential}"
            return ResultClass.CREDENTIALS_REJECTED, text if note is None else f"{text}, {note}"
        note = f"with credential {fetched.credential}"
    elif note is not None and (is_refused or _may_be_login(fetched.status, result)):
        return ResultClass.TOKEN_ERROR, f"HTTP {fetched.status}, {note}"
    elif fetched.withheld is not None:
        if result is ResultClass.GATED:
            return result, f"{reason}, {fetched.withheld}"
        if _may_be_login(fetched.status, result):
            return ResultClass.NOT_MEASURED, f"HTTP {fetched.status}, {fetched.withheld}"
    return result, reason if note is None else f"{reason}{', ' if reason else ''}{note}"


def _may_be_login(status: int | None, result: ResultClass) -> bool:
    """Return whether a failed answer to a request without its credential may be due to that."""
    return status is not None and status <= _SERVER_ERROR and result in _STATED


def rejection(fetched: Fetched) -> str:
    """Return in words how a server refused a request: its status, and its error code for tokens."""
    if fetched.status is None:
        return fetched.reason
    error = bearer_error(fetched.challenges)
    return f"HTTP {fetched.status}" if error is None else f"HTTP {fetched.status} ({error})"


def credential_state(fetched: Fetched, result: ResultClass) -> CredentialState | None:
    """Return whether a credential works, by the answer to a request with it; None if that is not clear.

    Redirects and server errors do not. `result`: class of the layer.
    """
    if result in CREDENTIAL_FAULTS:
        return CredentialState(result.value)
    if fetched.credential is None and fetched.token_fault is not None:
        return CredentialState.TOKEN_ERROR
    status = fetched.status
    if fetched.credential is None or status is None or status in _SAYS_NOTHING:
        return None
    return CredentialState.WORKS if status // 100 in {2, 4} else None


def _may_be_refusal(fetched: Fetched, url: URL, credential: Credential) -> bool:
    """Return whether an answer to a request without its credential may ask for one.

    A server that wants a client certificate fails the handshake, closes the connection, or answers 400.
    """
    if fetched.status is None:
        is_own = is_same_origin(fetched.url, url)
        return credential.has_certificate and is_own and fetched.result in _WITHOUT_CERTIFICATE
    return may_ask_for_login(fetched)


def may_ask_for_login(fetched: Fetched) -> bool:
    """Return whether an HTTP answer to a request without credential may be due to that."""
    if fetched.status in REJECTED or fetched.status == BAD_REQUEST:
        return True
    return is_page(fetched) or _may_be_login(fetched.status, fetched.result)


def _without_new_token(fetched: Fetched, credential: Credential) -> Fetched:
    """Return the answer to a request whose token was rejected, and could not be replaced."""
    why = credential.fault
    return fetched if why is None else replace(fetched, token_fault=f"and no new token ({why})")


def _without_token(fetched: Fetched | None, credential: Credential) -> Fetched | None:
    """Return the answer to a request that was sent without its credential because there is no token."""
    if fetched is None:
        return None
    why = credential.fault or "the token endpoint has not answered yet"
    return replace(fetched, token_fault=f"no token for credential {credential.name} ({why})")
