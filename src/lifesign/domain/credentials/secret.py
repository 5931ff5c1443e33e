"""Secrets: which texts and which files are accepted, and how a secret is removed from a text."""

import re
import stat
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import lru_cache
from itertools import groupby
from typing import Final
from urllib.parse import quote, quote_plus

from lifesign.domain.common.finding import json_pointer
from lifesign.domain.credentials.disguise import (
    DROPPED,
    MARKS,
    MIN_FOUND_BYTES,
    Disguises,
    needles_of,
    without_json_escapes,
)
from lifesign.domain.text.safe_text import OF_WRITING, SPACES

MIN_SECRET_CHARS: Final = 8
"""A shorter secret could not be removed from texts without removing ordinary words."""
MAX_SECRET_CHARS: Final = 8192
MAX_GROUPS: Final = 8
"""Maximum number of searches of a text, one after another, for secrets that contain each other."""
MAX_USUAL: Final = 256
"""Maximum number of cached results for short texts."""
MAX_USUAL_CHARS: Final = 200
REMOVED: Final = "REMOVED-SECRET"
"""Stands in the place of a secret; allowed in a URL."""
SEPARATOR: Final = "\x1f"
"""Stands between texts that are searched together: no escape contains it, so that none spans two texts."""

_PRINTABLE: Final = re.compile(r"[ -~]*")
# Characters that `safe_text` removes from shown texts, or shows as a space, which the search drops. They are
# searched for as they are and as JSON escapes.
_DROPPED: Final = sorted(OF_WRITING | SPACES)
_ESCAPED: Final = rf"\\u(?i:{'|'.join(f'{ord(char):04x}' for char in _DROPPED)})"
_INVISIBLE: Final = re.compile(rf"[{''.join(_DROPPED)}]|{_ESCAPED}")
# As bytes, by all but the last one: 24 separate branches would take twice the time.
_ENCODED: Final = [
    prefix + b"[" + b"".join(char.encode()[-1:] for char in chars) + b"]"
    for prefix, chars in groupby(_DROPPED, lambda char: char.encode()[:-1])
]
_INVISIBLE_IN_JSON: Final = re.compile(b"|".join((*_ENCODED, _ESCAPED.encode())))
_TOO_OPEN: Final = stat.S_IWGRP | stat.S_IWOTH | stat.S_IROTH


def secret_fault(text: str) -> str | None:
    """Return the rule for secrets that this text breaks; None if it is a valid secret."""
    if "\n" in text or "\r" in text:
        return "a secret of one line"
    if not _PRINTABLE.fullmatch(text):
        return "a secret of printable ASCII characters"
    if not MIN_SECRET_CHARS <= len(text) <= MAX_SECRET_CHARS:
        return f"a secret of {MIN_SECRET_CHARS} to {MAX_SECRET_CHARS} characters"
    if len(text.encode().translate(None, DROPPED)) < MIN_FOUND_BYTES:
        return f"a secret with {MIN_FOUND_BYTES} characters besides spaces, semicolons and backslashes"
    return None


def without_invisible(text: str) -> str:
    """Return a text, which may be JSON, without the characters that are removed before it is shown."""
    return text if text.isascii() and "\\u" not in text else _INVISIBLE.sub("", text)


def is_too_open(mode: int) -> bool:
    """Return whether the mode of a secret's file lets others read it, or group or others change it."""
    return bool(mode & _TOO_OPEN)


def is_open_to_group(mode: int) -> bool:
    """Return whether the mode of a secret's file lets its group read it. That causes only a warning."""
    return bool(mode & stat.S_IRGRP)


class Scrubber:
    """Removes secrets from texts and bytes before they are stored, logged or shown.

    It finds a secret as it is and as in a query, because a target may repeat the request, and as in a JSON
    pointer, with which an error names a place. It also finds it in base64 and base64url at each of the three
    alignments, and in hexadecimal. Each of them may be in upper or lower case, wrapped into lines, in UTF-16,
    and have any characters escaped as in a URL, in JSON or HTML, up to three times. The replacement is never
    longer than the secret, unless the whole text is replaced.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self.secrets = frozenset(secrets)
        self._all = _SecretForms(self.secrets)
        groups = _outer_first(self.secrets) if len(self.secrets) > 1 else []
        self._groups = [_SecretForms(each) for each in groups] if len(groups) > 1 else [self._all]
        self._may_be_in_usual = lru_cache(maxsize=MAX_USUAL)(
            lambda text: self.may_be_in(text.encode("utf-8", "surrogatepass"))
        )

    def __bool__(self) -> bool:
        return bool(self.secrets)

    def may_be_in(self, data: bytes) -> bool:
        """Return whether the bytes may contain a secret or its beginning. Only False is certain."""
        # Decoding never makes the data longer, and nothing shorter is searched for.
        return bool(self.secrets) and len(data) >= MIN_FOUND_BYTES and self._all.may_be_in(data)

    def may_be_in_cached(self, text: str) -> bool:
        """Return whether a text may contain a secret or its beginning. Results for short texts are cached."""
        if len(text) > MAX_USUAL_CHARS:
            return self.may_be_in(text.encode("utf-8", "surrogatepass"))
        return self._may_be_in_usual(text)

    def may_be_shown_in(self, data: bytes) -> bool:
        """Return whether `clean_shown` may change the bytes. Only False is certain."""
        if self.may_be_in(data):
            return True
        return _is_shown_otherwise(data) and self.may_be_in(_as_shown(data))

    def is_shown_in(self, data: bytes) -> bool | None:
        """Return whether `clean_shown` would find a secret; None if the search would take too long.

        The time does not show how much of a secret the bytes contain.
        """
        found = self._all.are_at_any_level(data)
        if found is None or not _is_shown_otherwise(data):
            return found
        shown = self._all.are_at_any_level(_as_shown(data))
        return None if shown is None else found or shown

    def clean(self, data: bytes) -> bytes:
        """Return the bytes with secrets replaced; the same object if they contain none."""
        cleaned = self.cleaned(data)
        return REMOVED.encode() if cleaned is None else cleaned

    def clean_shown(self, data: bytes) -> bytes:
        """Return a JSON body, whose texts are shown, with secrets replaced.

        This includes secrets with invisible characters in them, which `safe_text` removes from shown texts,
        and those that only the reader of JSON decodes rightly. If there are any, the whole body loses these
        characters and escapes.
        """
        cleaned = self.clean(data)
        if not _is_shown_otherwise(data):
            return cleaned
        visible = _as_shown(data)
        if visible == data:
            return cleaned
        shown = self.clean(visible)
        return cleaned if (visible if cleaned is data else _as_shown(cleaned)) == shown else shown

    def cleaned(self, data: bytes) -> bytes | None:
        """Return the bytes with secrets replaced; None if the search would take too long."""
        return self._cleaned(data) if self.may_be_in(data) else data

    def is_quoted_in(self, text: str) -> bool:
        """Return whether a text contains a secret."""
        return self.clean_text(text) != text

    def clean_text(self, text: str) -> str:
        """Return the text with secrets replaced; the same object if it contains none.

        As `clean_shown`, this finds secrets with invisible characters in them. It removes no part of a
        secret: what remained of a guess would show how much of it is right.
        """
        return self._cleaned_as_shown(text, None)

    def clean_cut(self, text: str) -> str:
        """Return a text to show, which may be cut within a secret, without secrets.

        It ends where a secret may begin. In doubt, all of it is replaced.
        """
        return self._cleaned_as_shown(text, _SecretForms.without_beginnings, in_doubt=REMOVED)

    def _cleaned_as_shown(self, text: str, then: "_Step | None", *, in_doubt: str | None = None) -> str:
        """Return the text with secrets replaced, also those with invisible characters in them.

        `in_doubt`: what replaces a text with such a secret; None: the text without invisible characters.
        """
        if not self.secrets:
            return text
        cleaned = self._cleaned_text(text, then)
        visible = without_invisible(text)
        if visible == text:
            return cleaned
        shown = self._cleaned_text(visible, then)
        if without_invisible(cleaned) == shown:
            return cleaned
        return shown if in_doubt is None else in_doubt

    def _cleaned(self, data: bytes, then: "_Step | None" = None) -> bytes | None:
        """Return the bytes with secrets replaced; None if that would take too long, or `then` returns it.

        `then` follows the search for each group, before those for secrets that are parts of this group's.
        """
        found: bytes | None = data
        for forms in self._groups:
            found = forms.removed_from(data)
            if found is not None and then is not None:
                found = then(forms, found)
            if found is None:
                return None
            data = found
        return found

    def _cleaned_text(self, text: str, then: "_Step | None") -> str:
        data = text.encode("utf-8", "surrogatepass") if self.secrets else b""
        if not self.may_be_in(data):
            return text
        found = self._cleaned(data, then)
        cleaned = REMOVED.encode() if found is None else found
        try:
            return cleaned.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            # A secret in an escaped form can end within a character.
            return cleaned.decode("utf-8", "replace")


class _SecretForms:
    """The forms of secrets, which are searched for together: none of the secrets contains another."""

    def __init__(self, secrets: Iterable[str]) -> None:
        sent = sorted({form for secret in secrets for form in _sent_forms(secret)}, key=len, reverse=True)
        forms = [form for secret in sent for form in (secret, *_base64_forms(secret))]
        self._literals = list(dict.fromkeys(forms))
        self._by_beginning: dict[bytes, list[bytes]] = {}
        for form in self._literals:
            self._by_beginning.setdefault(form[:MIN_SECRET_CHARS], []).append(form)
        spaced = [secret.replace(b" ", b"+") for secret in sent if b" " in secret]
        digits = [secret.hex().encode() for secret in sent]
        self._disguises = Disguises([*self._literals, *spaced, *digits], self._by_beginning)
        self.may_be_in = self._disguises.may_be_in
        self.are_at_any_level = self._disguises.are_at_any_level

    def removed_from(self, data: bytes) -> bytes | None:
        """Return the bytes with these secrets replaced; None if that would take too long."""
        for form in self._literals:
            if form in data:
                data = data.replace(form, _replacement(len(form)))
        return self._disguises.removed_from(data, _replacement)

    def without_beginnings(self, data: bytes) -> bytes | None:
        """Replace all that follows the beginning of a secret; None if there may be one in an escaped form.

        The replacement does not depend on how much follows of the secret: a peer that guesses a secret must
        not see how much is right.
        """
        if any(map(data.__contains__, MARKS)) and self.may_be_in(data):
            # What follows a beginning may be escaped.
            return None
        begins_at = min((at for each in self._by_beginning if (at := data.find(each)) >= 0), default=None)
        if begins_at is not None:
            data = data[:begins_at] + _replacement(len(data) - begins_at)
        return None if self.may_be_in(data) else data


_Step = Callable[[_SecretForms, bytes], bytes | None]

NO_SECRETS: Final = Scrubber(())
"""Removes nothing."""


def united(scrubbers: Iterable[Scrubber]) -> Scrubber:
    """Return what removes the secrets of all these: a secret of one may contain one of another."""
    found = [*dict.fromkeys(each for each in scrubbers if each)]
    if len(found) > 1:
        return Scrubber(secret for each in found for secret in each.secrets)
    return found[0] if found else NO_SECRETS


def secrets_in_header(value: str) -> list[str]:
    """Return the secrets in a header's value that a server may send back without the rest of it.

    These are what follows the scheme, the values of parameters and cookies, and the password of Basic.
    """
    scheme, _, rest = value.partition(" ")
    parts = [rest, *(part.partition("=")[2].strip().strip('"') for part in re.split("[,;]", value))]
    if scheme.lower() == "basic":
        with suppress(ValueError):
            pair = b64decode(rest, validate=True).decode()
            parts += [pair, pair.partition(":")[2]]
    return [part for part in dict.fromkeys(parts) if secret_fault(part) is None]


def scrubber_of(*secrets: str | None) -> Scrubber:
    """Return the scrubber of these secrets; it ignores None, and texts that are no valid secrets."""
    valid = [secret for secret in secrets if secret is not None and secret_fault(secret) is None]
    return Scrubber(valid) if valid else NO_SECRETS


def _is_shown_otherwise(data: bytes) -> bool:
    """Return whether `_as_shown` may change a JSON body."""
    return not data.isascii() or b"\\u" in data


def _as_shown(data: bytes) -> bytes:
    r"""Return a JSON body without the characters that are removed before it is shown, and escapes of ASCII.

    `%4e\u0079J` is shown as `%4eyJ`. A search for all kinds of escapes would read `%4e` as one of a URL.
    """
    visible = _INVISIBLE_IN_JSON.sub(b"", data)
    return without_json_escapes(visible) if b"\\u00" in visible else visible


def _replacement(length: int) -> bytes:
    return REMOVED.encode()[:length]


def _outer_first(secrets: Collection[str]) -> list[Collection[str]]:
    """Group secrets so that each one is in an earlier group than the secrets that it contains.

    If a part of a secret was replaced first, the search would not find the rest of it.
    """
    sent = {secret: _sent_forms(secret) for secret in secrets}
    texts = {secret: _in_lower_case(sent[secret]) for secret in secrets}
    parts = {
        secret: texts[secret] | _in_lower_case(form for each in sent[secret] for form in _base64_forms(each))
        for secret in secrets
    }
    joined = {secret: b"\n".join(texts[secret]) for secret in secrets}
    everything = b"\n".join(joined.values())
    # Usually there are none, and a comparison of all pairs would take longer.
    inner = [
        secret
        for secret in secrets
        if any(everything.count(part) > joined[secret].count(part) for part in parts[secret])
    ]
    contained = {
        outer: {each for each in inner if each != outer and _is_part(parts[each], texts[outer])}
        for outer in secrets
    }
    groups: list[Collection[str]] = []
    left = set(secrets)
    while left:
        is_last = len(groups) == MAX_GROUPS - 1
        chosen = left if is_last else {each for each in left if not contained[each] & left} or left
        groups.insert(0, chosen)
        left = left - chosen
    return groups


def _sent_forms(secret: str) -> frozenset[bytes]:
    """Return the forms in which a secret is sent: as it is, in a query, and in a JSON pointer."""
    forms = (secret, quote(secret, ""), quote_plus(secret), json_pointer(secret)[1:])
    return frozenset(form.encode() for form in forms)


def _in_lower_case(forms: Iterable[bytes]) -> frozenset[bytes]:
    return frozenset(needle.lower() for needle in needles_of(forms))


def _is_part(parts: Iterable[bytes], texts: Collection[bytes]) -> bool:
    return any(part in text and part != text for part in parts for text in texts)


def _base64_forms(secret: bytes) -> Iterable[bytes]:
    """Yield the base64 characters that depend on the secret only, at each of the three alignments."""
    for offset in range(3):
        first = -(-offset * 8 // 6)
        last = (offset + len(secret)) * 8 // 6
        form = b64encode(bytes(offset) + secret)[first:last]
        yield form
        yield form.replace(b"+", b"-").replace(b"/", b"_")
