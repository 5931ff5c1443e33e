"""OAuth 2: the authorization-code flow of a person who lends the prober rights (RFC 6749 4.1, 7636, 8252).

A redirect comes from a browser, and any page may cause one. What it says counts only with the right state.
"""

from base64 import urlsafe_b64encode
from dataclasses import field
from hashlib import sha256
from hmac import compare_digest
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.credentials.token import token_form

MAX_QUERY_CHARS: Final = 8192
MAX_PARAMETERS: Final = 32
MAX_CODE_CHARS: Final = 4096
KNOWN_ERRORS: Final = frozenset({
    "access_denied", "consent_required", "interaction_required", "invalid_request", "invalid_scope",
    "invalid_target", "login_required", "server_error", "temporarily_unavailable", "unauthorized_client",
    "unsupported_response_type",
})  # fmt: skip
"""Error codes that are shown. Any other text of a redirect may come from anywhere."""


@fast_dataclass(kw_only=True)
class AuthorizationRequest:
    """An OAuth authorization request to a person, with the secrets that only its own answer fits."""

    authorization_url: str
    client_id: str
    redirect_uri: str
    scope: str | None = None
    resource: str | None = None
    issuer: str | None = None
    """Issuer that the redirect must name (RFC 9207); None: the definition names none."""
    state: str = field(repr=False)
    verifier: str = field(repr=False)

    @property
    def url(self) -> str:
        """URL that the person opens in a browser to log in."""
        fields = token_form(
            {
                "response_type": "code",
                "client_id": self.client_id,
                "redirect_uri": self.redirect_uri,
                "state": self.state,
                "code_challenge": challenge_of(self.verifier),
                "code_challenge_method": "S256",
            },
            scope=self.scope,
            resource=self.resource,
        )
        mark = "&" if "?" in self.authorization_url else "?"
        return f"{self.authorization_url}{mark}{urlencode(fields)}"

    def grant(self, code: str) -> dict[str, str]:
        """Return the form fields that exchange a code for tokens."""
        return {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "code_verifier": self.verifier,
        }


@fast_dataclass()
class AuthorizationCode:
    """Authorization code of an OAuth login, to be exchanged for tokens. Its repr does not show it."""

    value: str = field(repr=False)


@fast_dataclass()
class RedirectFault:
    """Reason why the redirect of an OAuth login contains no valid code."""

    reason: str
    """For people; it quotes nothing but known error codes."""
    is_final: bool
    """Whether it answers this request. Any other page may have caused one that does not."""


def challenge_of(verifier: str) -> str:
    """Return the challenge S256 of a verifier (RFC 7636 4.2)."""
    return urlsafe_b64encode(sha256(verifier.encode("ascii")).digest()).rstrip(b"=").decode("ascii")


def read_redirect(query: str, request: AuthorizationRequest) -> AuthorizationCode | RedirectFault:
    """Return the authorization code in a redirect's query, or the reason why it has none."""
    members = _members(query)
    if members is None:
        return RedirectFault("the redirect has an invalid query", is_final=False)
    if not compare_digest(members.get("state", "").encode(), request.state.encode()):
        return RedirectFault("the redirect belongs to another login: its `state` differs", is_final=False)
    if (fault := _issuer_fault(members.get("iss"), request)) is not None:
        return RedirectFault(fault, is_final=True)
    if (error := members.get("error")) is not None:
        shown = error if error in KNOWN_ERRORS else "with an unknown code"
        return RedirectFault(f"the provider answered with an error: {shown}", is_final=True)
    code = members.get("code", "")
    if not (0 < len(code) <= MAX_CODE_CHARS and code.isascii() and code.isprintable()):
        expected = f"1 to {MAX_CODE_CHARS} printable ASCII characters"
        return RedirectFault(f"the redirect has no code of {expected}", is_final=True)
    return AuthorizationCode(code)


def _members(query: str) -> dict[str, str] | None:
    """Return the parameters of a query; None if one comes twice (RFC 6749 3.1), or there are too many."""
    if len(query) > MAX_QUERY_CHARS:
        return None
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError:
        return None
    members = dict(pairs)
    return members if len(members) == len(pairs) else None


def _issuer_fault(issuer: str | None, request: AuthorizationRequest) -> str | None:
    """Return why a redirect may come from another provider (RFC 9207 2.4); None if nothing says so."""
    if request.issuer is not None:
        return None if issuer == request.issuer else "the redirect does not name the issuer of the definition"
    is_known = issuer is None or _origin(issuer) == _origin(request.authorization_url)
    return None if is_known else "the redirect names an issuer on another origin than authorization_url"


def _origin(url: str) -> tuple[str, str] | None:
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return parts.scheme, parts.netloc.lower()
