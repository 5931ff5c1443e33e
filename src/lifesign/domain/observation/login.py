"""Login: what a target asks for before it answers, as its challenge, card and OAuth metadata say.

It is shown and decides nothing: neither whether the target works nor where a credential goes.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from lifesign.domain.a2a.security_schemes import MAX_SCHEMES, SchemeText
from lifesign.domain.credentials.challenge import MAX_CHALLENGES, MAX_SCHEME_CHARS, read_challenges
from lifesign.domain.net.allowed_addresses import DEFAULT_PORTS
from lifesign.domain.parsing.bounded_json import parse_or_none
from lifesign.domain.text.safe_text import harmless

MAX_METADATA_BYTES: Final = 64 * 1024
METADATA_PATH: Final = "/.well-known/oauth-protected-resource"
"""Of RFC 9728 3.1; the path of the resource follows."""
MAX_SERVERS: Final = 4
"""Authorization servers that are kept."""
MAX_SCOPES: Final = 16
MAX_SERVER_CHARS: Final = 512
MAX_SCOPE_CHARS: Final = 128
MAX_ORIGIN_CHARS: Final = 512
MAX_REASON_CHARS: Final = 200


_PORTS: Final[dict[str, int]] = {str(scheme): port for scheme, port in DEFAULT_PORTS.items()}


def _shown(text: object) -> object:
    return harmless(text) if isinstance(text, str) else text


_QUOTED: Final = BeforeValidator(_shown)


class MetadataResult(StrEnum):
    """Whether the OAuth metadata of a protected resource (RFC 9728) was found and is valid."""

    OK = "ok"
    """It names the target or its origin as the resource, and an authorization server."""
    MISSING = "missing"
    """No place has any."""
    INVALID = "invalid"
    """It breaks a rule."""


class _LoginFacts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class OAuthMetadata(_LoginFacts):
    """OAuth metadata that a protected resource publishes. URLs in it are never requested."""

    result: Annotated[MetadataResult, Field(strict=False)]
    reason: Annotated[str, Field(max_length=MAX_REASON_CHARS), _QUOTED] = ""
    """The broken rule; empty unless `result` is `invalid`."""
    authorization_servers: Annotated[
        tuple[Annotated[str, Field(max_length=MAX_SERVER_CHARS), _QUOTED], ...],
        Field(strict=False, max_length=MAX_SERVERS),
    ] = ()
    """Issuers that the target names, the first 4."""
    scopes: Annotated[
        tuple[Annotated[str, Field(max_length=MAX_SCOPE_CHARS), _QUOTED], ...],
        Field(strict=False, max_length=MAX_SCOPES),
    ] = ()
    """Scopes that the target names, the first 16."""


class Login(_LoginFacts):
    """How to authenticate at a target that refused a request."""

    origin: Annotated[str, Field(max_length=MAX_ORIGIN_CHARS), _QUOTED] | None = None
    """Origin that refused the request, such as the interface's; absent if it is the target's own."""
    schemes: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=MAX_SCHEME_CHARS), _QUOTED], ...],
        Field(strict=False, max_length=MAX_CHALLENGES),
    ] = ()
    """Schemes of the answer's `WWW-Authenticate`, in lower case; empty without a challenge."""
    card_schemes: Annotated[tuple[SchemeText, ...], Field(strict=False, max_length=MAX_SCHEMES)] = ()
    """Security schemes of the card, such as `oauth2` or `apiKey header X-API-Key`; empty without any."""
    metadata: OAuthMetadata | None = None
    """OAuth metadata; absent unless the target answered 401 with a challenge of OAuth."""

    @property
    def text(self) -> str:
        """The authentication method in one line; empty if nothing is known about it."""
        parts = [] if self.origin is None else [f"at {self.origin}"]
        if self.schemes:
            parts.append(f"challenge {', '.join(self.schemes)}")
        if self.card_schemes:
            parts.append(f"card {', '.join(self.card_schemes)}")
        if self.metadata is not None:
            parts.append(_metadata_text(self.metadata))
        return "; ".join(parts)


def login_of(
    fields: Sequence[str],
    card_schemes: Sequence[str],
    metadata: OAuthMetadata | None = None,
    *,
    origin: str | None = None,
) -> Login:
    """Return the login that a target requires, from its `WWW-Authenticate` fields and its card.

    `origin`: that of the refusal, if it is another one than the target's.
    """
    schemes = dict.fromkeys(each.scheme for each in read_challenges(fields))
    return Login(origin=origin, schemes=tuple(schemes), card_schemes=tuple(card_schemes), metadata=metadata)


def _metadata_text(metadata: OAuthMetadata) -> str:
    about = [f"({metadata.reason})"] if metadata.reason else []
    if metadata.authorization_servers:
        about.append(f"from {', '.join(metadata.authorization_servers)}")
    if metadata.scopes:
        about.append(f"with scopes {' '.join(metadata.scopes)}")
    return " ".join(["OAuth metadata", metadata.result.value, *about])


def read_metadata(body: bytes, resources: Sequence[str]) -> OAuthMetadata | None:
    """Return the members of an OAuth metadata document; None if the body is no JSON object.

    `resources`: URLs by which it may call the target.
    """
    members = parse_or_none(body)
    if not isinstance(members, dict):
        return None
    servers = _texts(members.get("authorization_servers"), MAX_SERVERS, MAX_SERVER_CHARS)
    scopes = _texts(members.get("scopes_supported"), MAX_SCOPES, MAX_SCOPE_CHARS)
    fault = _fault(members, servers, resources)
    result = MetadataResult.OK if fault is None else MetadataResult.INVALID
    return OAuthMetadata(
        result=result, reason=(fault or "")[:MAX_REASON_CHARS], authorization_servers=servers, scopes=scopes
    )


def _fault(members: dict[str, Any], servers: Sequence[str], resources: Sequence[str]) -> str | None:
    resource = members.get("resource")
    if not isinstance(resource, str):
        return "`resource` is not a text"
    if _plain(resource) not in {_plain(each) for each in resources}:
        return f"`resource` is not the target but {resource[:80]!a}"
    return None if servers else "`authorization_servers` names none"


def _plain(url: str) -> str | None:
    """Return a normalised URL without a slash at its end; None if it is invalid."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.hostname}:{port}{path}"


def _texts(value: object, most: int, chars: int) -> tuple[str, ...]:
    """Return the first texts of a list that are not longer than `chars`."""
    texts = (each for each in value if isinstance(each, str)) if isinstance(value, list) else ()
    return tuple([harmless(each) for each in texts if 0 < len(each) <= chars][:most])
