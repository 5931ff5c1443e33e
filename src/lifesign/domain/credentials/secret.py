"""Secrets: which texts and which files are accepted, and how a secret is removed from a text."""

import re
import stat
from base64 import b64encode
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

MIN_SECRET_CHARS: Final = 8
"""A shorter secret could not be removed from texts without removing ordinary words."""
MAX_SECRET_CHARS: Final = 8192
REMOVED: Final = "REMOVED-SECRET"
"""Stands in the place of a secret; allowed in a URL."""
TRUSTED_DIRECTORIES: Final = ("/run/secrets", "/var/run/secrets")
"""Docker and Kubernetes mount secrets here, and set the modes of the files."""
MAX_SCRUBBERS: Final = 1024

_PRINTABLE: Final = re.compile(r"[ -~]*")
_TOO_OPEN: Final = stat.S_IWGRP | stat.S_IWOTH | stat.S_IROTH


def secret_fault(text: str) -> str | None:
    """Return what a secret must be that this text is not; None if the text is accepted."""
    if "\n" in text or "\r" in text:
        return "a secret of one line"
    if not _PRINTABLE.fullmatch(text):
        return "a secret of printable ASCII characters"
    if not MIN_SECRET_CHARS <= len(text) <= MAX_SECRET_CHARS:
        return f"a secret of {MIN_SECRET_CHARS} to {MAX_SECRET_CHARS} characters"
    return None


def is_too_open(mode: int) -> bool:
    """Return whether a file of this mode may be changed by its group or others, or read by others."""
    return bool(mode & _TOO_OPEN)


def is_open_to_group(mode: int) -> bool:
    """Return whether a file of this mode may be read by its group, which is a warning."""
    return bool(mode & stat.S_IRGRP)


class Scrubber:
    """Removes secrets from what is stored, logged or shown.

    It finds a secret as it is, also in a JSON string, in base64 and base64url at each of the three
    alignments, in hexadecimal, and with any of its characters escaped as in a URL or in JSON.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = sorted({secret.encode() for secret in secrets}, key=len, reverse=True)
        self._literals = [form for secret in self._secrets for form in _literal_forms(secret)]
        self._hex = [secret.hex().encode() for secret in self._secrets]

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def clean(self, data: bytes) -> bytes:
        """Return the bytes without the secrets; the same object if there is none in them."""
        for form in self._literals:
            if form in data:
                data = data.replace(form, REMOVED.encode())
        if self._hex:
            lowered = data.lower()
            for secret, digits in zip(self._secrets, self._hex, strict=True):
                if digits in lowered:
                    data = re.sub(re.escape(digits), REMOVED.encode(), data, flags=re.IGNORECASE)
                    lowered = data.lower()
                if b"%" in data or b"\\u00" in data:
                    data = _escaped_pattern(secret).sub(REMOVED.encode(), data)
        return data

    def clean_text(self, text: str) -> str:
        """Return the text without the secrets."""
        if not self._secrets:
            return text
        data = text.encode("utf-8", "surrogatepass")
        cleaned = self.clean(data)
        return text if cleaned is data else cleaned.decode("utf-8", "surrogatepass")


def _literal_forms(secret: bytes) -> Iterable[bytes]:
    """Return the forms of a secret that are always spelled the same, without repetition."""
    escaped = secret.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    forms = (secret, escaped, escaped.replace(b"/", b"\\/"), *_base64_forms(secret))
    return dict.fromkeys(forms)


def _base64_forms(secret: bytes) -> Iterable[bytes]:
    """Yield the characters of base64 that a secret alone decides, at each of the three alignments."""
    for offset in range(3):
        first = -(-offset * 8 // 6)
        last = (offset + len(secret)) * 8 // 6
        form = b64encode(bytes(offset) + secret)[first:last]
        yield form
        yield form.replace(b"+", b"-").replace(b"/", b"_")


@lru_cache(maxsize=MAX_SCRUBBERS)
def _escaped_pattern(secret: bytes) -> re.Pattern[bytes]:
    """Return what finds a secret of which any characters are escaped, as in a URL or in a JSON string.

    In a URL, a space may be a plus.
    """
    parts = []
    for byte in secret:
        plus = rb"|\+" if byte == ord(" ") else b""
        digits = b"".join(
            b"[%c%c]" % (digit, digit ^ 0x20) if chr(digit).isalpha() else b"%c" % digit
            for digit in b"%02x" % byte
        )
        parts.append(b"(?:" + re.escape(bytes([byte])) + rb"|(?:%|\\u00)" + digits + plus + b")")
    return re.compile(b"".join(parts))
