"""Header fields of an answer that a consumer of health documents must know.

A header that cannot be read counts as absent.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from encodings.aliases import aliases

MAX_LINKS = 32
"""Maximum of links in an answer that are examined."""
MAX_DIGITS = 9
"""Numbers of seconds with more digits are cut off: 999999999 seconds are 31 years."""
MAX_TYPE_CHARS = 256
"""A charset is read only from so many characters at the beginning of a `Content-Type`."""
UTF_8 = "utf_8"
# Others are not decoded: some take quadratic time (punycode), and in some a secret has more than one form.
_CODECS = frozenset({
    UTF_8, "utf_16", "utf_16_le", "utf_16_be", "latin_1",
    # There is no part 12.
    *(f"iso8859_{part}" for part in (*range(2, 12), *range(13, 17))),
    *(f"cp125{number}" for number in range(9)), "koi8_r", "koi8_u", "gb2312", "gbk", "gb18030", "big5",
    "euc_jp", "shift_jis", "euc_kr",
})  # fmt: skip

_CHARSET = re.compile(r";\s*charset\s*=\s*\"?([A-Za-z0-9_.:-]+)", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]+")
_MAX_AGE = re.compile(r"max-age=\"?([0-9]+)\"?", re.IGNORECASE)
_BETWEEN_LINKS = re.compile(r",\s*(?=<)")
_LINK = re.compile(r"<([^<>]*)>(.*)", re.DOTALL)


def media_type(headers: Mapping[str, str]) -> str:
    """Return an answer's media type in lower case, without parameters; empty if there is none.

    aiohttp's own reader of `Content-Type` takes quadratic time for parameters.
    """
    return headers.get("Content-Type", "").partition(";")[0].strip().lower()


def text_codec(headers: Mapping[str, str]) -> str:
    """Return Python's codec for the charset of an answer; that of UTF-8 if it is absent or not known."""
    field = headers.get("Content-Type", "")
    if ";" not in field:
        return UTF_8
    found = _CHARSET.search(field[:MAX_TYPE_CHARS])
    name = "" if found is None else found[1].lower().replace("-", "_")
    codec = aliases.get(name, name)
    return codec if codec in _CODECS else UTF_8


def whole_number(text: str) -> int | None:
    """Read a number of seconds, at most 999999999; None if it is not one."""
    text = text.strip()
    if _NUMBER.fullmatch(text) is None:
        return None
    return int(text) if len(text) <= MAX_DIGITS else 10**MAX_DIGITS - 1


def max_age_seconds(cache_control: Iterable[str]) -> int | None:
    """Return `max-age` of the `Cache-Control` headers (RFC 9111 5.2.2.1); None without a valid one."""
    for field in cache_control:
        for directive in field.split(","):
            if found := _MAX_AGE.fullmatch(directive.strip()):
                return whole_number(found[1])
    return None


def retry_after_seconds(retry_after: str, now: datetime) -> int | None:
    """Return the seconds to wait by a `Retry-After` header (RFC 9110 10.2.3): a number or a date."""
    seconds = whole_number(retry_after)
    if seconds is not None or not retry_after:
        return seconds
    try:
        moment = parsedate_to_datetime(retry_after)
        return max(0, round((moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds()))
    except (ValueError, OverflowError):
        return None


def status_links(links: Iterable[str]) -> tuple[str, ...]:
    """Return the targets of `Link` headers with `rel="status"` (RFC 8288, RFC 8631), unchanged."""
    entries = [entry for field in links for entry in _BETWEEN_LINKS.split(field)][:MAX_LINKS]
    found = (_LINK.match(entry.strip()) for entry in entries)
    return tuple(link[1].strip() for link in found if link is not None and "status" in _relations(link[2]))


def _relations(parameters: str) -> list[str]:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "rel":
            return value.strip().strip('"').lower().split()
    return []
