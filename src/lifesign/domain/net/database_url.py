"""Database URLs: which ones have a single reading, and their form for people, without the password.

Parsers of URLs disagree about a password with `@`, `/` or white space that is not percent-encoded. What one
of them takes for the host may be the end of the password, so such a URL is neither opened nor shown.
"""

import re
from typing import Final

from lifesign.domain.net.allowed_addresses import without_passwords

MAX_SHOWN_CHARACTERS: Final = 80
"""Maximum length of an invalid URL in a message."""
_PART: Final = r"[^\s:/?#@\[\]]*"
_SERVER_URL: Final = re.compile(
    rf"[A-Za-z][A-Za-z0-9+_.-]*://(?:{_PART}(?::(?P<password>{_PART}))?@)?"
    rf"(?:\[[0-9A-Fa-f:.%]+\]|{_PART})(?::[0-9]{{1,5}})?(?:/[^\s?#@]*)?(?:\?[^\s#@]*)?"
)
_FILE: Final = "sqlite:"


def has_one_reading(url: str) -> bool:
    """Return whether all parsers find the same user, password, host and port in the URL of a server."""
    return _SERVER_URL.fullmatch(url) is not None


def shown_database_url(url: str) -> str | None:
    """Return a database's URL with `...` for its password; None if nothing of it may be shown.

    A URL of a server without a single reading is shown as its scheme alone.
    """
    if url.startswith(_FILE):
        return without_passwords(url)
    found = _SERVER_URL.fullmatch(url)
    if found is not None:
        start, end = found.span("password")
        return without_passwords(url if start < 0 else f"{url[:start]}...{url[end:]}")
    scheme, is_like_one, _ = url.partition("://")
    if is_like_one:
        return f"{scheme[:MAX_SHOWN_CHARACTERS]}://..."
    # libpq also reads `host=... password=...`.
    return None if "@" in url or "=" in url else url[:MAX_SHOWN_CHARACTERS]
