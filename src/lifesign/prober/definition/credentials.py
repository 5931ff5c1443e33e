"""Credentials in a probe definition: where each one may be sent, and where its secret is.

The definition itself never contains a secret.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError
from yarl import URL

from lifesign.domain.credentials.api_key import (
    DEFAULT_NAME,
    TRANSPORT_HEADERS,
    ApiKeyPlace,
    KeyPlace,
    is_taken,
)
from lifesign.domain.credentials.request_scope import MAX_CARD_ORIGINS, MAX_CREDENTIALS, CredentialScope
from lifesign.domain.credentials.secret_place import ENV_PATTERN, SYSTEMD_PATTERN, FileName, SecretPlace
from lifesign.domain.net.allowed_addresses import AddressRefused, vet_url
from lifesign.domain.targets.target import origin_of, read_target
from lifesign.prober.definition.layer_settings import DefinitionMapping
from lifesign.prober.definition.values import HealthPath, Name, Switch

HEADER_PATTERN: Final = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$"
USER_PATTERN: Final = "^[!-9;-~][ -9;-~]{0,127}$"
CLIENT_PATTERN: Final = "^[!-~]{1,256}$"
SCOPE_PATTERN: Final = r"^[!#-\[\]-~]+( [!#-\[\]-~]+)*$"
MAX_SCOPE_CHARS: Final = 1024
MAX_OAUTH_URL_CHARS: Final = 2048
CREDENTIAL_FORMS: Final = {
    ENV_PATTERN: "the name of an environment variable",
    SYSTEMD_PATTERN: "the name of a systemd credential",
    HEADER_PATTERN: "the name of a header, such as X-API-Key",
    USER_PATTERN: "a user name of printable ASCII characters without a colon",
    CLIENT_PATTERN: "1 to 256 printable ASCII characters without spaces",
    SCOPE_PATTERN: "scopes with one space between them, without quotes and backslashes",
}
"""Description of each pattern, for error messages."""
CERTIFICATE_METHOD: Final = "client_certificate"
"""Method of a credential that is only a client certificate."""
KEY_MEMBER: Final = "client_key"
_METHODS: Final = ("bearer", "basic", "header", "api_key", "oauth2")


def _refuse_inline(given: Any) -> Any:
    if isinstance(given, str | int | float):
        raise PydanticCustomError(
            "inline_secret",
            "expected the place of the secret, {file: NAME}, {env: NAME} or {systemd: NAME}: "
            "a definition never contains a secret",
        )
    return given


Secret = Annotated[SecretPlace, BeforeValidator(_refuse_inline)]


class CredentialMapping(DefinitionMapping):
    """Base class of the mappings of a credential. Errors do not quote unknown keys: they may be secrets."""

    hides_unknown_keys: ClassVar = True


class BasicLogin(CredentialMapping):
    """User name and password (RFC 7617)."""

    username: Annotated[str, Field(pattern=USER_PATTERN)]
    """User name, without a colon."""
    password: Secret
    """Place of the password."""


class SecretHeader(CredentialMapping):
    """An HTTP header whose value is a secret."""

    name: Annotated[str, Field(pattern=HEADER_PATTERN)]
    """Name of the header, such as X-API-Key."""
    value: Secret
    """Place of the value."""

    @model_validator(mode="after")
    def _refuse_transport_header(self) -> Self:
        if self.name.lower() in TRANSPORT_HEADERS:
            raise PydanticCustomError(
                "transport_header", "expected a header that the prober does not set itself, such as X-API-Key"
            )
        return self


class ApiKey(CredentialMapping):
    """An API key. It is sent where the agent card says, else where the definition says."""

    value: Secret
    """Place of the key."""
    place: Annotated[KeyPlace, Field(strict=False)] = KeyPlace.HEADER
    """Part of a request that has the key, without a card that names one: header, query or cookie."""
    name: Annotated[str, Field(pattern=HEADER_PATTERN)] = DEFAULT_NAME
    """Name of the header, query parameter or cookie."""

    @model_validator(mode="after")
    def _refuse_reserved_name(self) -> Self:
        if is_taken(self.place, self.name):
            raise PydanticCustomError(
                "transport_header", "expected a header that the prober does not set itself, such as X-API-Key"
            )
        return self

    @property
    def configured(self) -> ApiKeyPlace:
        """Where the key is sent if the agent card does not say."""
        return ApiKeyPlace(self.place, self.name)


class OAuthGrant(StrEnum):
    """How an OAuth 2 client gets access tokens."""

    CLIENT_CREDENTIALS = "client_credentials"
    """By the client's own rights (RFC 6749 4.4)."""
    REFRESH_TOKEN = "refresh_token"  # noqa: S105 - a grant
    """By a refresh token, which a person's consent gave the client (RFC 6749 6)."""


class AuthMethod(StrEnum):
    """How an OAuth 2 client proves its identity to the token endpoint."""

    CLIENT_SECRET_BASIC = "client_secret_basic"  # noqa: S105 - a method
    """The secret in the header `Authorization` (RFC 6749 2.3.1)."""
    CLIENT_SECRET_POST = "client_secret_post"  # noqa: S105 - a method
    """The secret in the body."""
    PRIVATE_KEY_JWT = "private_key_jwt"
    """A signed assertion (RFC 7523); the private key never leaves the prober."""
    NONE = "none"
    """A public client, which has no secret; only with the grant `refresh_token`."""


def _check_oauth_url(value: str) -> str:
    """Accept the URL of a token endpoint or a resource: one that may be contacted, without a fragment."""
    vetted = vet_url(value)
    if "#" in value or (isinstance(vetted, AddressRefused) and vetted.name == "invalid_url"):
        raise PydanticCustomError("oauth_url", "expected a URL of http or https without a fragment")
    return value


OAuthUrl = Annotated[str, Field(max_length=MAX_OAUTH_URL_CHARS), AfterValidator(_check_oauth_url)]


_SECRET_PROOF: Final = "client_secret and no private_key"  # noqa: S105
_PROOFS: Final[Mapping[AuthMethod, str]] = MappingProxyType({
    AuthMethod.PRIVATE_KEY_JWT: "private_key and no client_secret",
    AuthMethod.NONE: "neither client_secret nor private_key",
})  # fmt: skip
"""What a client needs with an authentication method; `_SECRET_PROOF` with all others."""


class OAuthClient(CredentialMapping):
    """An OAuth 2 client (RFC 6749)."""

    token_url: OAuthUrl
    """The token endpoint. Secret or key of the client are used there and nowhere else."""
    client_id: Annotated[str, Field(pattern=CLIENT_PATTERN)]
    """Name of the client."""
    auth_method: AuthMethod = AuthMethod.CLIENT_SECRET_BASIC
    """How the client proves who it is: client_secret_basic, client_secret_post, private_key_jwt or none."""
    grant: OAuthGrant = OAuthGrant.CLIENT_CREDENTIALS
    """By what the client gets tokens: client_credentials or refresh_token."""
    token_file: FileName | None = None
    """File with the refresh token. The prober writes the tokens that replace it."""
    authorization_url: OAuthUrl | None = None
    """The authorization endpoint, where a person consents (`lifesign credentials login`)."""
    issuer: OAuthUrl | None = None
    """Issuer that the redirect of a login must name (RFC 9207), if the provider sends one."""
    client_secret: Secret | None = None
    """Place of the client's secret."""
    private_key: Secret | None = None
    """Place of the private key of private_key_jwt: unencrypted PEM, RSA or P-256."""
    key_id: Annotated[str, Field(pattern=CLIENT_PATTERN)] | None = None
    """Name of the private key (`kid`), if the provider needs it."""
    scope: Annotated[str, Field(pattern=SCOPE_PATTERN, max_length=MAX_SCOPE_CHARS)] | None = None
    """Rights to ask for, with spaces between them; null asks for none by name."""
    resource: OAuthUrl | None = None
    """The resource for which the token is to be (RFC 8707)."""

    @model_validator(mode="after")
    def _check_method_fields(self) -> Self:
        is_signed = self.auth_method is AuthMethod.PRIVATE_KEY_JWT
        is_public = self.auth_method is AuthMethod.NONE
        has_secret = self.client_secret is not None
        if (self.private_key is not None) != is_signed or has_secret != (not is_signed and not is_public):
            raise PydanticCustomError(
                "client_proof",
                "with auth_method {method}, expected {proof}; a public client has auth_method none",
                {"method": self.auth_method.value, "proof": _PROOFS.get(self.auth_method, _SECRET_PROOF)},
            )
        is_refreshed = self.grant is OAuthGrant.REFRESH_TOKEN
        if (self.token_file is not None) != is_refreshed or (is_public and not is_refreshed):
            raise PydanticCustomError(
                "token_file",
                (
                    "expected token_file with the grant refresh_token, and with no other; auth_method "
                    "none needs this grant"
                ),
            )
        if (self.authorization_url or self.issuer) is not None and not is_refreshed:
            raise PydanticCustomError(
                "authorization_url", "expected authorization_url and issuer with the grant refresh_token only"
            )
        if self.key_id is not None and not is_signed:
            raise PydanticCustomError("key_id", "expected key_id with auth_method private_key_jwt only")
        return self

    @property
    def token_origin(self) -> str:
        """Origin of the token endpoint, normalised."""
        return origin_of(str(URL(self.token_url)))

    @property
    def proof(self) -> tuple[str, SecretPlace]:
        """Setting and place of the client's secret, private key, or (of a public client) refresh token."""
        if self.client_secret is not None:
            return "client_secret", self.client_secret
        if self.private_key is not None:
            return "private_key", self.private_key
        return "token_file", SecretPlace(file=self.token_file)


def _normalize_origin(value: str) -> str:
    """Return an origin in its usual spelling."""
    target = read_target(value)
    if isinstance(target, AddressRefused):
        raise PydanticCustomError("target", "{reason}", {"reason": target.reason})
    url = URL(target, encoded=True)
    if url.raw_path_qs != "/" or "://" not in value:
        raise PydanticCustomError(
            "origin", "expected an origin such as https://agent.example: write the path into the key path"
        )
    return str(url.origin())


Origin = Annotated[str, AfterValidator(_normalize_origin)]


def _check_scope_path(value: str) -> str:
    if any(character in value for character in "?;%"):
        raise PydanticCustomError("scope_path", "expected a path without ?, ; and %, such as /billing")
    return value


class CredentialSettings(CredentialMapping):
    """One credential: bearer, basic, header, api_key or oauth2, and a client certificate, or one of both."""

    name: Name
    """Name in results and logs."""
    origin: Origin
    """Scheme, host and port, such as https://agent.example. The credential is sent there and nowhere else."""
    path: Annotated[HealthPath, AfterValidator(_check_scope_path)] = "/"
    """The credential is sent to this path and below."""
    card_origins: Annotated[tuple[Origin, ...], Field(max_length=MAX_CARD_ORIGINS)] = ()
    """Other origins whose agent cards may name an interface here: its requests carry the credential too."""
    for_all_targets: Switch = False
    """Also for targets of directories and registered agents; false: only for those of this definition."""
    bearer: Secret | None = None
    """A bearer token (RFC 6750)."""
    basic: BasicLogin | None = None
    """A user name and a password (RFC 7617)."""
    header: SecretHeader | None = None
    """A header with a secret value."""
    api_key: ApiKey | None = None
    """An API key, in the header, query or cookie that the agent card names."""
    oauth2: OAuthClient | None = None
    """Access tokens of an OAuth 2 provider, sent as bearer tokens."""
    client_certificate: FileName | None = None
    """File with a client certificate in PEM, and those between it and its authority (mTLS)."""
    client_key: Secret | None = None
    """Place of the private key of client_certificate: PEM, without a passphrase."""
    ca_file: FileName | None = None
    """File with the authorities that may issue this origin's certificate, in PEM; null: the system's."""

    @model_validator(mode="after")
    def _require_one_method(self) -> Self:
        methods = sum(getattr(self, method) is not None for method in _METHODS)
        if methods > 1 or (not methods and self.client_certificate is None):
            raise PydanticCustomError(
                "one_method",
                (
                    "expected exactly one of bearer, basic, header, api_key and oauth2, or a "
                    "client_certificate, or one of them with a client_certificate"
                ),
            )
        if (self.client_certificate is None) != (self.client_key is None):
            raise PydanticCustomError(
                "certificate_pair", "expected client_certificate and client_key together"
            )
        is_plain = self.origin.startswith("http:")
        if is_plain and not (self.client_certificate is None and self.ca_file is None):
            raise PydanticCustomError(
                "tls_origin", "expected an https origin, because client_certificate or ca_file is set"
            )
        return self

    @property
    def scope(self) -> CredentialScope:
        """Return the URLs to which the credential may be sent."""
        return CredentialScope(
            name=self.name, origin=self.origin, path=self.path, card_origins=self.card_origins
        )

    @property
    def method(self) -> str:
        """Kind of the credential: bearer, basic, header, api_key, oauth2, or else client_certificate."""
        given = (method for method in _METHODS if getattr(self, method) is not None)
        return next(given, CERTIFICATE_METHOD)

    @property
    def source(self) -> SecretPlace:
        """Return the place where the secret is stored."""
        if self.bearer is not None:
            return self.bearer
        if self.basic is not None:
            return self.basic.password
        if self.oauth2 is not None:
            return self.oauth2.proof[1]
        if self.header is not None:
            return self.header.value
        if self.api_key is not None:
            return self.api_key.value
        assert self.client_key is not None  # noqa: S101 - one of the six is given
        return self.client_key


def _require_distinct(values: tuple[CredentialSettings, ...]) -> tuple[CredentialSettings, ...]:
    """Refuse two credentials with one name, or for one place."""
    for what, keys in (
        ("name", [credential.name for credential in values]),
        ("origin and path", [credential.origin + credential.path.rstrip("/") for credential in values]),
    ):
        if len(set(keys)) < len(keys):
            raise PydanticCustomError(
                "same_credential", "expected credentials that differ in {what}", {"what": what}
            )
    authorities: dict[str, Path | None] = {}
    for credential in values:
        if authorities.setdefault(credential.origin, credential.ca_file) != credential.ca_file:
            raise PydanticCustomError(
                "one_ca_file", "expected the same ca_file in all credentials of one origin"
            )
    return values


Credentials = Annotated[
    tuple[CredentialSettings, ...], Field(max_length=MAX_CREDENTIALS), AfterValidator(_require_distinct)
]


def sources_of(credentials: Sequence[CredentialSettings]) -> Iterator[tuple[str, SecretPlace]]:
    """Yield the setting and the place of each secret of these credentials."""
    for credential in credentials:
        setting = f"credentials.{credential.name}"
        if credential.method != CERTIFICATE_METHOD:
            member = "" if credential.oauth2 is None else f".{credential.oauth2.proof[0]}"
            yield f"{setting}.{credential.method}{member}", credential.source
        if credential.client_key is not None:
            yield f"{setting}.{KEY_MEMBER}", credential.client_key
