"""Redirects: their destinations, and whether they are followed."""

from typing import Final

from yarl import URL

from lifesign.domain.a2a.interfaces import MAX_URL_CHARS
from lifesign.domain.credentials.secret import NO_SECRETS, Scrubber
from lifesign.domain.targets.target import is_on_origin_of

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
KEEPS_METHOD: Final = frozenset({307, 308})
"""A POST that is redirected otherwise would become a GET."""
"""Status codes."""
MAX_REDIRECTS: Final = 3
"""Maximum per request."""
MAX_SHOWN_CHARS: Final = 80
"""Maximum length of an address in a reason."""


def is_same_origin(one: URL, other: URL) -> bool:
    """Return whether two URLs are requested from the same scheme, host and port (RFC 6454)."""
    is_spelled_alike = one.raw_authority == other.raw_authority and one.scheme == other.scheme
    return is_spelled_alike or is_on_origin_of(str(one), str(other))


SECRET_IN_URL: Final = "redirected to a URL that contains a secret"  # noqa: S105 - a reason


def parsed(text: str) -> URL:
    """Parse a URL from a foreign text; only ValueError is raised if it is invalid."""
    try:
        return URL(text)
    except IndexError:
        # yarl raises this for `http://[::1]@`.
        raise ValueError("an authority without a host") from None


def resolve_url(base: URL, place: str) -> URL | None:
    """Return `place` as an absolute URL, relative to `base`; None if that is no http(s) URL."""
    if len(place) > MAX_URL_CHARS:
        return None
    try:
        target = base.join(parsed(place)).with_fragment(None)
        is_callable = target.scheme in {"http", "https"} and bool(target.raw_host) and target.port != 0
    except ValueError:
        return None
    return target if is_callable else None


def next_hop(
    url: URL,
    location: str,
    *,
    followed: int,
    has_token: bool,
    may_leave_origin: bool,
    scrubber: Scrubber = NO_SECRETS,
) -> URL | str:
    """Return the URL to which a redirect leads, or the reason why it is not followed.

    `followed` is the number of redirects before this one. `scrubber`: removes the secrets that the server may
    have put into the URL. Its host would reach name servers, and its path is stored.
    """
    if followed == MAX_REDIRECTS:
        return f"more than {MAX_REDIRECTS} redirects"
    target = resolve_url(url, location)
    # A relative one, or one with dot segments, may contain a secret only once it is resolved.
    if any(scrubber.is_quoted_in(text) for text in (location, str(target))):
        return SECRET_IN_URL
    reason = refusal(url, target, has_token=has_token, may_leave_origin=may_leave_origin)
    if target is None or reason is not None:
        return reason or ""
    return target


def refusal(url: URL, target: URL | None, *, has_token: bool, may_leave_origin: bool) -> str | None:
    """Return why a redirect from `url` to `target` is not followed; None if it may be followed.

    From http to https of one host it is no other origin, unless there is a token.
    """
    if target is None:
        return "redirected to something that is not an http(s) URL"
    if target.raw_user is not None or target.raw_password is not None:
        return "redirected to a URL with credentials"
    where = ascii(str(target)[:MAX_SHOWN_CHARS])
    if url.scheme == "https" and target.scheme == "http":
        return f"redirected from https to plain http: {where}"
    is_followed = not has_token and (may_leave_origin or _is_upgrade(url, target))
    if is_followed or is_same_origin(url, target):
        return None
    return f"redirected to another origin{', which must not get the token' if has_token else ''}: {where}"


def _is_upgrade(url: URL, target: URL) -> bool:
    """Return whether a redirect only changes from http to https, both on their default ports."""
    return (
        (url.scheme, target.scheme) == ("http", "https")
        and url.raw_host == target.raw_host
        and url.is_default_port()
        and target.is_default_port()
    )
