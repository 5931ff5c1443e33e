"""Advice for an operator: what to do about a credential that does not work."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lifesign.domain.credentials.acceptance import CredentialState
from lifesign.domain.credentials.challenge import BearerError
from lifesign.domain.credentials.token import TokenFaultKind

# It may be a secret or, with oauth2, the access token.
LOOK_AT_SECRET: Final = "look at the expiry, the rights and (with oauth2) the audience of the secret or token"  # noqa: S105
TOO_FEW_RIGHTS: Final = "give the credential the rights for this URL, such as a wider scope"
BLOCKED_ADDRESS: Final = "blocked_address"
"""The value of `ResultClass`, which this package does not import."""
ALLOW_NETWORK: Final = "if the network of token_url is your own, add it to networks.allow of the definition"
NEW_REFRESH_TOKEN: Final = (
    "get a new refresh token, for example by: lifesign credentials login NAME --definition FILE"  # noqa: S105
)
NO_TOKEN_ENDPOINT: Final = "compare token_url with the provider's: it is no token endpoint"  # noqa: S105

_TOKEN_ADVICE: Final[Mapping[TokenFaultKind, str]] = MappingProxyType({
    TokenFaultKind.NO_ANSWER: "look at token_url, and at the network and the certificate of its server",
    TokenFaultKind.SERVER_ERROR: "the provider is at fault: wait for the next try, or ask the provider",
    TokenFaultKind.REFUSED: "compare client, secret or key, scope and resource with those of the provider",
    TokenFaultKind.NOT_JSON: "compare token_url with the provider's: the answer is a page, or no JSON object",
    TokenFaultKind.TOKEN_TYPE: "ask the provider for bearer tokens",
    TokenFaultKind.TOKEN_FORM: "ask the provider for a token that a header can carry",
    TokenFaultKind.LIFETIME: "ask the provider for a lifetime in seconds",
    TokenFaultKind.TOKEN_FILE: "look at the mode of the token file, and stop other processes that use it",
})  # fmt: skip

_NO_ENDPOINT: Final = (404, 405)


def fault_advice(state: CredentialState, detail: str | None) -> str:
    """Return one sentence of advice for a fault of a credential.

    `detail`: the text of its `TokenFault`, or the answer that rejected it.
    """
    text = detail or ""
    if state is CredentialState.CREDENTIALS_REJECTED:
        return TOO_FEW_RIGHTS if BearerError.INSUFFICIENT_SCOPE in text else LOOK_AT_SECRET
    kind = text.partition(":")[0]
    if kind == TokenFaultKind.NO_ANSWER and BLOCKED_ADDRESS in text:
        return ALLOW_NETWORK
    if kind == TokenFaultKind.REFUSED and "invalid_grant" in text:
        return NEW_REFRESH_TOKEN
    if kind == TokenFaultKind.REFUSED and any(f"HTTP {status}" in text for status in _NO_ENDPOINT):
        return NO_TOKEN_ENDPOINT
    is_known = kind in set(TokenFaultKind)
    return _TOKEN_ADVICE[TokenFaultKind(kind) if is_known else TokenFaultKind.NO_ANSWER]
