"""What a request asks, and its header fields in their wire form."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Final, Literal

from yarl import URL

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.credentials.secret import Scrubber
from lifesign.errors import InvalidValue
from lifesign.prober.secrets.client_tls import ClientTls
from lifesign.prober.secrets.credential_store import Credential

Method = Literal["GET", "POST", "OPTIONS", "DELETE"]

HARMLESS_HEADERS: Final = frozenset({
    "accept", "content-type", "a2a-version", "a2a-extensions", "mcp-method", "mcp-protocol-version",
})  # fmt: skip
"""Headers that may be sent to another origin.

Any other header may contain a secret and stays with its origin.
"""
MAX_ACCEPTED: Final = 16
"""Maximum number of cached `Accept` fields."""
MAX_TIME_CHARS: Final = 64
"""Maximum length of a time in a header."""

_FIELD_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_VALUE: Final = re.compile(r"[ -~]*")


@fast_dataclass(kw_only=True)
class Request:
    """One HTTP request, with its limits of size and time."""

    url: URL
    method: Method = "GET"
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers besides those of every request."""
    etag: str | None = None
    """ETag of the known version: the answer that it has not changed is `ok`, without a body."""
    modified_since: str | None = None
    """The same by `Last-Modified`, as sent, if there is no entity tag."""
    max_bytes: int
    """The largest body that is read, after decompression."""
    is_head_enough: bool = False
    """Whether the body is not needed: it is not read."""
    needs_any_body: bool = False
    """Whether a GET reads the body with every status except redirects; else only if the result is `ok`."""
    is_part_enough: bool = False
    """Whether the beginning of a body is enough: its first `max_bytes`, or the bytes until it broke off."""
    is_enough: Callable[[bytes, Scrubber], bool] | None = None
    """Called with each piece of an event stream: whether nothing more need be read; None: all is read.

    The scrubber removes the secrets that the sender of the stream receives.
    """
    deadline_s: float
    """Deadline on the event loop's clock; `total_seconds` from now if that is sooner."""
    may_leave_origin: bool = False
    """Whether a redirect may lead to another origin; from http to https of one host it always may."""
    accept: str = "application/json"
    credential: Credential | None = None
    """Sent if its scope covers `url`; after a redirect, only if no other one has a longer path for that."""
    known_credentials: Sequence[Credential] = ()
    """Credentials that the same probe sends with other requests.

    An answer is searched for the secret of one of them if that one is the credential for its URL.
    """
    card_schemes: Sequence[str] = ()
    """Security schemes of the agent card, which name the place of an API key."""
    own_secret: str | None = None
    """Secret in its headers that is no credential: it is removed from the answer."""
    has_secret: bool = False
    """Whether URL, headers or body have a secret: sent over TLS, or to an allowed private network only."""
    tls: ClientTls | None = None
    """TLS settings of its connection; None: those of the credentials."""
    needs_new_connection: bool = False
    """Whether no open connection is used, so that all addresses are tried again."""
    kept_out: Callable[[URL], Awaitable[str | None]] | None = None
    """Called with the target of a redirect before it is followed: returns why it is excluded, None if it is
    not.
    """


def header_fields(fields: Mapping[str, str], setting: str) -> str:
    """Return header fields in their wire form; InvalidValue for line breaks in them."""
    for name, value in fields.items():
        if not (_FIELD_NAME.fullmatch(name) and _FIELD_VALUE.fullmatch(value)):
            raise InvalidValue(setting, None, "header fields of printable ASCII")
    return "".join(f"{name}: {value}\r\n" for name, value in fields.items())


@lru_cache(maxsize=MAX_ACCEPTED)
def accept_field(types: str) -> str:
    """Return the `Accept` field: the same few values in all requests."""
    return header_fields({"Accept": types}, "headers")


def echoable(text: str | None, max_chars: int) -> str | None:
    """Return a value that can be sent back unchanged; None if it is too long or has odd characters."""
    return text if text is not None and len(text) <= max_chars and _FIELD_VALUE.fullmatch(text) else None
