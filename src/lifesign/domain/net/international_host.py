"""Hosts with letters of other alphabets.

They are written in ASCII: `bücher.example` is `xn--bcher-kva.example` (UTS 46, IDNA 2008), as in browsers.
Ids, lists and pages use this form: two names that look the same, one of them with a Cyrillic letter, differ
there. Letters that an alphabet uses like digits and dots are converted first, and the result is checked as an
address.
"""

import re
from typing import Final

from lifesign.domain.net.allowed_addresses import MAX_HOST_CHARACTERS, AddressRefused

_PARTS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^/?#\\\s]*)(.*)", re.DOTALL)
_HOST_AND_PORT: Final = re.compile(r"([^@\[\]:]+)(:[0-9]*)?")
_NAME: Final = re.compile(r"[a-z0-9.-]+")


def with_ascii_host(url: str) -> str | AddressRefused:
    """Return a URL with its international host name in ASCII, or the reason why the name is invalid."""
    if url.isascii():
        return url
    parts = _PARTS.fullmatch(url)
    authority = None if parts is None else _HOST_AND_PORT.fullmatch(parts[2])
    if parts is None or authority is None or authority[1].isascii():
        # Another fault is reported elsewhere.
        return url
    host = ascii_host(authority[1])
    return host if isinstance(host, AddressRefused) else f"{parts[1]}{host}{authority[2] or ''}{parts[3]}"


def ascii_host(host: str) -> str | AddressRefused:
    """Return an international host name in ASCII, or the reason why it is invalid."""
    if host.isascii():
        return host
    if len(host) > MAX_HOST_CHARACTERS:
        return AddressRefused("invalid_url", f"the host is longer than {MAX_HOST_CHARACTERS} characters")
    # The package comes with yarl, which an agent with the middleware need not have.
    import idna  # noqa: PLC0415

    try:
        name = idna.encode(host, uts46=True).decode()
    except UnicodeError as error:
        return AddressRefused(
            "invalid_url", f"the host is not a valid international name ({ascii(str(error))[1:-1]})"
        )
    if not _NAME.fullmatch(name):
        return AddressRefused(
            "invalid_url",
            (
                "the host is not a valid international name (its ASCII form has characters that no "
                "host may have)"
            ),
        )
    return name
