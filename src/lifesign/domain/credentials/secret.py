"""Secrets: which texts and which files are accepted, and how a secret is removed from a text."""

import re
import stat
from base64 import b64encode
from collections.abc import Iterable
from itertools import takewhile
from typing import Final

from lifesign.domain.credentials.disguise import MAX_LEVELS, find_disguised, needles_of

MIN_SECRET_CHARS: Final = 8
"""A shorter secret could not be removed from texts without removing ordinary words."""
MAX_SECRET_CHARS: Final = 8192
REMOVED: Final = "REMOVED-SECRET"
"""Stands in the place of a secret; allowed in a URL."""
TRUSTED_DIRECTORIES: Final = ("/run/secrets", "/var/run/secrets")
"""Docker and Kubernetes mount secrets here, and set the modes of the files."""

_PRINTABLE: Final = re.compile(r"[ -~]*")
_TOO_OPEN: Final = stat.S_IWGRP | stat.S_IWOTH | stat.S_IROTH


def secret_fault(text: str) -> str | None:
    """Return the rule for secrets that this text breaks; None if the text is accepted."""
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

    It finds a secret as it is, in base64 and base64url at each of the three alignments, and in hexadecimal;
    each of them also wrapped into lines, and with any characters escaped as in a URL or in JSON, up to three
    times. The replacement of a secret is never longer than the secret.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = sorted({secret.encode() for secret in secrets}, key=len, reverse=True)
        forms = [form for secret in self._secrets for form in (secret, *_base64_forms(secret))]
        self._literals = list(dict.fromkeys(forms))
        self._digits = [secret.hex().encode() for secret in self._secrets]
        spaced = [secret.replace(b" ", b"+") for secret in self._secrets if b" " in secret]
        self._needles = needles_of([*self._literals, *spaced])
        self._min_bytes = min(map(len, (*self._literals, *self._needles, *self._digits)), default=0)

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def clean(self, data: bytes) -> bytes:
        """Return the bytes without the secrets; the same object if there is none in them."""
        # Decoding never makes the data longer.
        if len(data) < self._min_bytes or not self._secrets:
            return data
        for form in self._literals:
            if form in data:
                data = data.replace(form, _replacement(len(form)))
        for _ in range(MAX_LEVELS):
            spans = find_disguised(data, self._needles, self._digits)
            if not spans:
                return data
            data = _without(data, spans)
        # The remaining parts may form a secret again.
        return data if not find_disguised(data, self._needles, self._digits) else REMOVED.encode()

    def clean_text(self, text: str) -> str:
        """Return the text without the secrets."""
        if not self._secrets:
            return text
        data = text.encode("utf-8", "surrogatepass")
        cleaned = self._without_beginnings(self.clean(data))
        if cleaned is data:
            return text
        try:
            return cleaned.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            # A secret in an escaped form can end within a character.
            return cleaned.decode("utf-8", "replace")

    def _without_beginnings(self, data: bytes) -> bytes:
        """Remove the beginnings of secrets: texts that quote a peer are cut before they come here."""
        for form in self._literals:
            begin = form[:MIN_SECRET_CHARS]
            at = data.find(begin)
            while at >= 0:
                pairs = zip(data[at : at + len(form)], form, strict=False)
                length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
                replacement = _replacement(length)
                data = data[:at] + replacement + data[at + length :]
                at = data.find(begin, at + len(replacement))
        return data


def _replacement(length: int) -> bytes:
    return REMOVED.encode()[:length]


def _without(data: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    """Return bytes with some spans replaced."""
    parts: list[bytes] = []
    at = 0
    for begin, end in spans:
        parts += [data[at:begin], _replacement(end - begin)]
        at = end
    return b"".join([*parts, data[at:]])


def _base64_forms(secret: bytes) -> Iterable[bytes]:
    """Yield the base64 characters that depend on the secret only, at each of the three alignments."""
    for offset in range(3):
        first = -(-offset * 8 // 6)
        last = (offset + len(secret)) * 8 // 6
        form = b64encode(bytes(offset) + secret)[first:last]
        yield form
        yield form.replace(b"+", b"-").replace(b"/", b"_")
