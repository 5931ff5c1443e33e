"""Secrets: which texts and which files are accepted, and how a secret is removed from a text."""

import re
import stat
from base64 import b64encode
from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import quote, quote_plus

from lifesign.domain.credentials.disguise import MIN_FOUND_BYTES, Disguises, needles_of
from lifesign.domain.text.safe_text import OF_WRITING

MIN_SECRET_CHARS: Final = 8
"""A shorter secret could not be removed from texts without removing ordinary words."""
MAX_SECRET_CHARS: Final = 8192
MAX_BEGINNINGS: Final = 10_000
"""Maximum of beginnings of a secret that are removed from a text; one with more is replaced as a whole."""
MAX_USUAL: Final = 256
"""Maximum number of cached results for short texts."""
MAX_USUAL_CHARS: Final = 200
REMOVED: Final = "REMOVED-SECRET"
"""Stands in the place of a secret; allowed in a URL."""
SEPARATOR: Final = "\x1f"
"""Stands between texts that are searched together: no escape contains it, so that none spans two texts."""
TRUSTED_DIRECTORIES: Final = ("/run/secrets", "/var/run/secrets")
"""Docker and Kubernetes mount secrets here, and set the modes of the files."""

_PRINTABLE: Final = re.compile(r"[ -~]*")
# Those that `safe_text` removes from texts before they are shown, as they are and as JSON escapes.
_INVISIBLE: Final = re.compile(f"[{''.join(sorted(OF_WRITING))}]")
_INVISIBLE_IN_JSON: Final = re.compile(
    b"|".join(form for mark in sorted(OF_WRITING) for form in (mark.encode(), rb"\\u%04x" % ord(mark))),
    re.IGNORECASE,
)
_TOO_OPEN: Final = stat.S_IWGRP | stat.S_IWOTH | stat.S_IROTH


def secret_fault(text: str) -> str | None:
    """Return the rule for secrets that this text breaks; None if it is a valid secret."""
    if "\n" in text or "\r" in text:
        return "a secret of one line"
    if not _PRINTABLE.fullmatch(text):
        return "a secret of printable ASCII characters"
    if not MIN_SECRET_CHARS <= len(text) <= MAX_SECRET_CHARS:
        return f"a secret of {MIN_SECRET_CHARS} to {MAX_SECRET_CHARS} characters"
    return None


def is_too_open(mode: int) -> bool:
    """Return whether the mode of a secret's file lets others read it, or group or others change it."""
    return bool(mode & _TOO_OPEN)


def is_open_to_group(mode: int) -> bool:
    """Return whether the mode of a secret's file lets its group read it. That causes only a warning."""
    return bool(mode & stat.S_IRGRP)


class Scrubber:
    """Removes secrets from texts and bytes before they are stored, logged or shown.

    It finds a secret in upper and lower case, in base64 and base64url at each of the three alignments, and in
    hexadecimal; so it finds the form that the secret has in a query, as a target may repeat the request. Each
    of them may be wrapped into lines, in UTF-16, and have any characters escaped as in a URL, in JSON or in
    HTML, up to three times. The replacement is never longer than the secret, unless the whole text is
    replaced.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        sent = {
            form.encode() for secret in secrets for form in (secret, quote(secret, ""), quote_plus(secret))
        }
        self._secrets = sorted(sent, key=len, reverse=True)
        forms = [form for secret in self._secrets for form in (secret, *_base64_forms(secret))]
        self._literals = list(dict.fromkeys(forms))
        spaced = [secret.replace(b" ", b"+") for secret in self._secrets if b" " in secret]
        # The names of schemes and media types, for example, are read in lower case.
        lower = needles_of(secret.lower() for secret in self._secrets)
        self._disguises = Disguises(
            [*self._literals, *spaced],
            [*(secret.hex().encode() for secret in self._secrets), *lower],
            [form[:MIN_SECRET_CHARS] for form in self._literals],
        )
        self._may_be_in_usual = lru_cache(maxsize=MAX_USUAL)(
            lambda text: self.may_be_in(text.encode("utf-8", "surrogatepass"))
        )

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def may_be_in(self, data: bytes) -> bool:
        """Return whether the bytes may contain a secret or its beginning. Only False is certain."""
        # Decoding never makes the data longer, and nothing shorter is searched for.
        return bool(self._secrets) and len(data) >= MIN_FOUND_BYTES and self._disguises.may_be_in(data)

    def may_be_in_cached(self, text: str) -> bool:
        """Return whether a text may contain a secret or its beginning. Results for short texts are cached."""
        if len(text) > MAX_USUAL_CHARS:
            return self.may_be_in(text.encode("utf-8", "surrogatepass"))
        return self._may_be_in_usual(text)

    def clean(self, data: bytes) -> bytes:
        """Return the bytes with secrets replaced; the same object if they contain none."""
        cleaned = self.cleaned(data)
        return REMOVED.encode() if cleaned is None else cleaned

    def clean_shown(self, data: bytes) -> bytes:
        """Return a JSON body, whose texts are shown, with secrets replaced.

        This includes secrets with invisible characters in them, which `safe_text` removes from shown texts.
        If there are any, the whole body loses these characters.
        """
        cleaned = self.clean(data)
        visible = _INVISIBLE_IN_JSON.sub(b"", cleaned)
        if visible == cleaned or (shown := self.clean(visible)) == visible:
            return cleaned
        return shown

    def cleaned(self, data: bytes) -> bytes | None:
        """Return the bytes with secrets replaced; None if the search would take too long."""
        return self._cleaned(data) if self.may_be_in(data) else data

    def clean_text(self, text: str) -> str:
        """Return the text with secrets replaced; the same object if it contains none."""
        data = text.encode("utf-8", "surrogatepass") if self._secrets else b""
        if not self.may_be_in(data):
            return text
        found = self._cleaned(data)
        cleaned = REMOVED.encode() if found is None else self._without_beginnings(found)
        try:
            return cleaned.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            # A secret in an escaped form can end within a character.
            return cleaned.decode("utf-8", "replace")

    def clean_cut(self, text: str) -> str:
        """Return a text to show, which may be cut within a secret, without secrets.

        In doubt, all of it is replaced.
        """
        cleaned = self.clean_text(text)
        shown = _INVISIBLE.sub("", cleaned)
        return REMOVED if self.may_be_in(shown.encode("utf-8", "surrogatepass")) else cleaned

    def _cleaned(self, data: bytes) -> bytes | None:
        for form in self._literals:
            if form in data:
                data = data.replace(form, _replacement(len(form)))
        return self._disguises.removed_from(data, _replacement)

    def _without_beginnings(self, data: bytes) -> bytes:
        """Remove the beginnings of secrets: texts that quote a peer are cut before they come here."""
        for form in self._literals:
            beginning, parts, at = form[:MIN_SECRET_CHARS], [], 0
            if data.count(beginning) > MAX_BEGINNINGS:
                return REMOVED.encode()
            while (found := data.find(beginning, at)) >= 0:
                length = _common_length(data[found : found + len(form)], form)
                parts += [data[at:found], _replacement(length)]
                at = found + length
            if parts:
                data = b"".join((*parts, data[at:]))
        return data


def scrubber_of(secret: str | None) -> Scrubber:
    """Return the scrubber of one secret; it removes nothing for None or a text that is no valid secret."""
    return Scrubber(() if secret is None or secret_fault(secret) is not None else (secret,))


def _common_length(text: bytes, form: bytes) -> int:
    """Return the number of bytes with which both begin."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if text[:middle] == form[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _replacement(length: int) -> bytes:
    return REMOVED.encode()[:length]


def _base64_forms(secret: bytes) -> Iterable[bytes]:
    """Yield the base64 characters that depend on the secret only, at each of the three alignments."""
    for offset in range(3):
        first = -(-offset * 8 // 6)
        last = (offset + len(secret)) * 8 // 6
        form = b64encode(bytes(offset) + secret)[first:last]
        yield form
        yield form.replace(b"+", b"-").replace(b"/", b"_")
