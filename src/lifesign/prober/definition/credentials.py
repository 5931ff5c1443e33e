"""Credentials in a probe definition: where each one may be sent, and where its secret is.

The definition itself never contains a secret.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError
from yarl import URL

from lifesign.domain.credentials.scope import MAX_CREDENTIALS, CredentialScope
from lifesign.domain.net.target import read_target
from lifesign.domain.net.target_address import AddressRefused
from lifesign.prober.definition.layer_settings import DefinitionMapping
from lifesign.prober.definition.values import FileName, HealthPath, Name

ENV_PATTERN: Final = "^[A-Za-z_][A-Za-z0-9_]{0,127}$"
SYSTEMD_PATTERN: Final = "^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$"
HEADER_PATTERN: Final = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$"
USER_PATTERN: Final = "^[!-9;-~][ -9;-~]{0,127}$"
CREDENTIAL_FORMS: Final = {
    ENV_PATTERN: "the name of an environment variable",
    SYSTEMD_PATTERN: "the name of a systemd credential",
    HEADER_PATTERN: "the name of a header, such as X-API-Key",
    USER_PATTERN: "a user name of printable ASCII characters without a colon",
}
"""Description of each pattern, for error messages."""
TRANSPORT_HEADERS: Final = frozenset({
    "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect",
    "host", "if-modified-since", "if-none-match", "keep-alive", "te", "trailer", "transfer-encoding",
    "upgrade", "user-agent",
})  # fmt: skip
"""Headers that the prober sets, or that change how a request is read."""
_METHODS: Final = ("bearer", "basic", "header")


def _refuse_inline(given: Any) -> Any:
    if isinstance(given, str | int | float):
        raise PydanticCustomError(
            "inline_secret",
            "expected the place of the secret, {{file: NAME}}, {{env: NAME}} or {{systemd: NAME}}: "
            "a definition never contains a secret",
        )
    return given


class SecretPlace(DefinitionMapping):
    """Place of a secret: exactly one of the three."""

    file: FileName | None = None
    """File with the secret, relative to the definition; not writable by its group, nor readable by others."""
    env: Annotated[str, Field(pattern=ENV_PATTERN)] | None = None
    """Environment variable with the secret."""
    systemd: Annotated[str, Field(pattern=SYSTEMD_PATTERN)] | None = None
    """Name of a credential that systemd passes on (LoadCredential=)."""

    @model_validator(mode="after")
    def _stand_in_one_place(self) -> Self:
        if sum(each is not None for each in (self.file, self.env, self.systemd)) != 1:
            raise PydanticCustomError("one_source", "expected exactly one of file, env and systemd")
        return self

    def __str__(self) -> str:
        """Return the place, for people; it contains no secret."""
        if self.file is not None:
            return f"file {self.file}"
        return f"systemd credential {self.systemd}" if self.env is None else f"variable {self.env}"


Secret = Annotated[SecretPlace, BeforeValidator(_refuse_inline)]


class BasicLogin(DefinitionMapping):
    """User name and password (RFC 7617)."""

    username: Annotated[str, Field(pattern=USER_PATTERN)]
    """User name, without a colon."""
    password: Secret
    """Place of the password."""


class SecretHeader(DefinitionMapping):
    """A header with a secret value."""

    name: Annotated[str, Field(pattern=HEADER_PATTERN)]
    """Name of the header, such as X-API-Key."""
    value: Secret
    """Place of the value."""

    @model_validator(mode="after")
    def _be_no_transport_header(self) -> Self:
        if self.name.lower() in TRANSPORT_HEADERS:
            raise PydanticCustomError(
                "transport_header", "expected a header that the prober does not set itself, such as X-API-Key"
            )
        return self


def _take_origin(value: str) -> str:
    """Return an origin in its usual spelling."""
    target = read_target(value)
    if isinstance(target, AddressRefused):
        raise PydanticCustomError("target", "{reason}", {"reason": target.reason})
    url = URL(target, encoded=True)
    if url.raw_path_qs != "/" or "://" not in value:
        raise PydanticCustomError(
            "origin", "expected an origin such as https://agent.example: path is a key of its own"
        )
    return str(url.origin())


def _take_scope_path(value: str) -> str:
    if any(character in value for character in "?;%"):
        raise PydanticCustomError("scope_path", "expected a path without ?, ; and %, such as /billing")
    return value


class CredentialSettings(DefinitionMapping):
    """A credential: exactly one of bearer, basic and header."""

    name: Name
    """Name in results and logs."""
    origin: Annotated[str, AfterValidator(_take_origin)]
    """Scheme, host and port, such as https://agent.example. The credential is sent there and nowhere else."""
    path: Annotated[HealthPath, AfterValidator(_take_scope_path)] = "/"
    """The credential is sent to this path and below."""
    bearer: Secret | None = None
    """A bearer token (RFC 6750)."""
    basic: BasicLogin | None = None
    """A user name and a password (RFC 7617)."""
    header: SecretHeader | None = None
    """A header with a secret value."""

    @model_validator(mode="after")
    def _have_one_method(self) -> Self:
        if sum(getattr(self, method) is not None for method in _METHODS) != 1:
            raise PydanticCustomError("one_method", "expected exactly one of bearer, basic and header")
        return self

    @property
    def scope(self) -> CredentialScope:
        """Where it may be sent."""
        return CredentialScope(name=self.name, origin=self.origin, path=self.path)

    @property
    def method(self) -> str:
        """Name of the method: bearer, basic or header."""
        return next(method for method in _METHODS if getattr(self, method) is not None)

    @property
    def source(self) -> SecretPlace:
        """Where the secret is."""
        if self.bearer is not None:
            return self.bearer
        if self.basic is not None:
            return self.basic.password
        assert self.header is not None  # noqa: S101 - one of the three is given
        return self.header.value


def _take_distinct(values: tuple[CredentialSettings, ...]) -> tuple[CredentialSettings, ...]:
    """Refuse two credentials with one name, or for one place."""
    for what, keys in (
        ("name", [credential.name for credential in values]),
        ("origin and path", [credential.origin + credential.path.rstrip("/") for credential in values]),
    ):
        if len(set(keys)) < len(keys):
            raise PydanticCustomError(
                "same_credential", "expected credentials that differ in {what}", {"what": what}
            )
    return values


Credentials = Annotated[
    tuple[CredentialSettings, ...], Field(max_length=MAX_CREDENTIALS), AfterValidator(_take_distinct)
]


def sources_of(credentials: Sequence[CredentialSettings]) -> Iterator[tuple[str, SecretPlace]]:
    """Yield the setting and the place of each secret."""
    for credential in credentials:
        yield f"credentials.{credential.name}.{credential.method}", credential.source
