"""Proof that the owner of an origin opts out of probes.

A caller gets a token for one origin, and puts it into a file there, under `/.well-known/`, which only the
owner can do. The prefix of a token names its purpose: the same file proves that a target belongs to an agent.
The registry reads the file with one GET that follows no redirect to another origin. If the file contains the
token, the origin's targets are no longer probed. The request does not contain the token, so that a server
that repeats requests proves nothing. Neither side needs an account.
"""

import base64
import hmac
import re
from typing import Final

from lifesign.domain.net.allowed_addresses import AddressRefused
from lifesign.domain.targets.target import read_target
from lifesign.errors import InvalidValue

PROOF_PATH: Final = "/.well-known/lifesign-proof"
"""Path of the file: text, with the token on a line of its own."""
MAX_PROOF_BYTES: Final = 4096
"""Maximum size of that file; a longer one proves nothing."""
TOKEN_PREFIX: Final = "aho_"  # noqa: S105 - what all of them begin with
LINK_TOKEN_PREFIX: Final = "ahl_"  # noqa: S105 - what those begin with that link an agent and a target
TOKEN_BYTES: Final = 32
"""Random bytes."""
TOKEN_TTL_SECONDS: Final = 7 * 86_400.0
"""Time for an owner to serve a token. After it, a new token is needed."""

_TOKEN: Final = re.compile(rf"(?:{TOKEN_PREFIX}|{LINK_TOKEN_PREFIX})[A-Za-z0-9_-]{{43}}")


def origin_of(url: str) -> str | AddressRefused:
    """Return the origin of a URL or domain, such as `https://agent.example:8443`, or why there is none."""
    target = read_target(url)
    if isinstance(target, AddressRefused):
        return target
    scheme, _, rest = target.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def token_of(random_bytes: bytes, prefix: str = TOKEN_PREFIX) -> str:
    """Return a proof token made of `TOKEN_BYTES` random bytes; InvalidValue for another number."""
    if len(random_bytes) != TOKEN_BYTES:
        raise InvalidValue("random_bytes", f"{len(random_bytes)} bytes", f"{TOKEN_BYTES} bytes")
    return prefix + base64.urlsafe_b64encode(random_bytes).decode("ascii").rstrip("=")


def is_open(requested_at_s: float, now_s: float) -> bool:
    """Return whether a token requested at `requested_at_s` may still be used as a proof."""
    return now_s - requested_at_s < TOKEN_TTL_SECONDS


def is_proven(token: str, body: bytes) -> bool:
    """Return whether the content of PROOF_PATH has the token on a line of its own.

    For answers with status 200 from the origin itself. Spaces around the token and other lines do not matter;
    False for an invalid token.
    """
    if len(body) > MAX_PROOF_BYTES or _TOKEN.fullmatch(token) is None:
        return False
    lines = body.removeprefix(b"\xef\xbb\xbf").splitlines()
    return any(hmac.compare_digest(line.strip(), token.encode()) for line in lines)


def is_covered(url: str, origin: str) -> bool:
    """Return whether an opt-out of `origin` applies to a target, in the form of `read_target`.

    It does if the URL lies on the origin. A proof over https also covers plain http on the same host, both on
    their default ports; other ports may belong to others, and plain http proves nothing about https.
    """
    if url.startswith(f"{origin}/"):
        return True
    scheme, _, authority = origin.partition("://")
    has_own_port = not re.search(r":[0-9]+$", authority)
    return scheme == "https" and has_own_port and url.startswith(f"http://{authority}/")
