"""Visitors of the dashboard: sessions, and tokens of forms.

A login presents a key once, and gets the token of a session: a cookie that scripts cannot read, and that
other sites cannot send with a form. The database stores the token's digest. A session ends at its time, at
logout, and with its key. Tokens of forms are derived from the session's token, so that they are not stored.

Browsers send a cookie to every port of its host, so other programs there may know the token. It permits to
read. To change something, a form must also contain a secret that scripts of this origin alone can read, or
the key.
"""

import hmac
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response

from lifesign.dashboard.errors import ForgedForm, NotLoggedIn, UnconfirmedForm
from lifesign.domain.access.permissions import (
    Permission,
    Principal,
    Role,
    digest_of,
    is_current,
    looks_like_key,
    may,
)
from lifesign.domain.errors import NotAllowed
from lifesign.registry.errors import UnknownKey
from lifesign.registry.request_handling.execution import authenticate
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.keys import key_rows, sessions
from lifesign.storage.keys.sessions import StoredSession

SESSION_COOKIE = "lifesign_session"
FORM_COOKIE = "lifesign_form"
"""Cookie of a visitor without a session, from which the token of the login form is derived."""
SESSION_SECONDS = 12 * 3_600
"""Lifetime of a session; then the visitor has to log in again."""
SESSION_COOKIE_SECONDS = 7 * 86_400
"""Lifetime of the cookie. It is longer than the session, so that the server can report its end."""
MAX_SESSIONS_OF_KEY = 32
"""Maximum number of sessions of one key; a further login ends the oldest."""
PROOF_FIELD = "browser_secret"
"""Field of a form, which a script fills from the browser's storage (`browser_secret.js`)."""
TOKEN_BYTES = 32
MAX_TOKEN_CHARACTERS = 128
_DIGEST_MARK = "."
"""Stands in a session's token before the digest of the browser's secret."""

_NEEDED = (
    Permission.LIST_AGENTS,
    Permission.READ_EVENTS,
    Permission.READ_TARGETS,
    Permission.READ_TASKS,
    Permission.READ_MONITOR,
)
_ANYBODY = Principal("anybody", Role.READER, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Visitor of a page."""

    principal: Principal
    key_name: str | None
    """Name of the key of the session; None without a session."""
    digest: bytes = field(repr=False)
    """Digest of that key; empty without a session."""
    form_token: str = field(repr=False)
    """Token that the forms of this visitor's pages must contain."""
    must_enter_key: bool = False
    """Whether forms ask for the key, because the browser sent no secret at the login."""

    @property
    def is_logged_in(self) -> bool:
        """Whether the visitor has a key."""
        return self.key_name is not None

    def may(self, action: Permission, agent_id: str | None = None) -> bool:
        """Return whether to show a button for this; actions need a session."""
        return self.is_logged_in and may(self.principal, action, agent_id)


def visitor_of(transaction: Transaction, token: str, *, is_open: bool) -> Visitor:
    """Return the visitor with this token; NotLoggedIn unless reading is open to everyone (`is_open`)."""
    visitor = find_visitor(transaction, token)
    if visitor is not None:
        return visitor
    if not is_open:
        raise NotLoggedIn
    return Visitor(principal=_ANYBODY, key_name=None, digest=b"", form_token="")


def find_visitor(transaction: Transaction, token: str) -> Visitor | None:
    """Return the visitor whose session has this token; None if there is no valid session."""
    now_s = transaction.now_s
    session = sessions.find(transaction, digest_of_token(token)) if token else None
    if session is None or now_s >= session.expires_at_s:
        return None
    key = key_rows.find_by_id(transaction, session.key_id)
    if key is None or not is_current(key, now_s):
        return None
    return Visitor(
        principal=Principal(key.key_id, key.role, key.agent_id),
        key_name=key.name,
        digest=key.digest,
        form_token=form_token(token),
        must_enter_key=_DIGEST_MARK not in token,
    )


def digests_still_good(transaction: Transaction, digests: Collection[str]) -> set[str]:
    """Return those of these digests of session tokens whose sessions are still valid."""
    now_s = transaction.now_s
    return {
        session.digest
        for session, key in sessions.of_digests(transaction, digests)
        if now_s < session.expires_at_s and is_current(key, now_s)
    }


def log_in(transaction: Transaction, key: str, token: str) -> None:
    """Begin a session of a key.

    Raises UnknownKey, or NotAllowed for a key that may not read the fleet.
    """
    if not looks_like_key(key):
        raise UnknownKey
    principal = authenticate(transaction, digest_of(key))
    for action in _NEEDED:
        if not may(principal, action):
            raise NotAllowed(principal.role, action, None)
    begun = StoredSession(
        digest=digest_of_token(token),
        key_id=principal.key_id,
        created_at_s=transaction.now_s,
        expires_at_s=transaction.now_s + SESSION_SECONDS,
    )
    sessions.add(transaction, begun, MAX_SESSIONS_OF_KEY)


def log_out(transaction: Transaction, token: str) -> None:
    """End a session."""
    sessions.end(transaction, digest_of_token(token))


def new_token(browser_secret: str = "") -> str:
    """Return a random token, which ends in the digest of the browser's secret if there is one."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    return f"{token}{_DIGEST_MARK}{digest_of_token(browser_secret)}" if browser_secret else token


def form_token(token: str) -> str:
    """Return the token that forms must contain, derived from the token in a visitor's cookie."""
    return hmac.new(token.encode(), b"form of the dashboard", sha256).hexdigest()


def cookie_name(name: str, *, is_https: bool) -> str:
    """Return the name of the cookie; over TLS, no other host of its domain can set it."""
    return f"__Host-{name}" if is_https else name


def cookie_in(request: Request, cookie: str) -> str:
    """Return the value of a cookie as sent; empty if the request has none of this name.

    The standard library takes quadratic time for a quoted value before Python 3.11.10 and 3.12.6
    (CVE-2024-7592), and Starlette reads all cookies with it. No cookie of ours is quoted.
    """
    found = ""
    for line in request.headers.getlist("cookie"):
        for pair in line.split(";"):
            name, _, value = pair.partition("=")
            found = value.strip() if name.strip() == cookie else found
    return found


def token_in(request: Request, cookie: str) -> str:
    """Return the token in a cookie of a request; empty if it cannot be a token of this server."""
    token = cookie_in(request, cookie)
    return token if token.isascii() and len(token) <= MAX_TOKEN_CHARACTERS else ""


def set_cookie(response: Response, name: str, token: str, seconds: int, *, is_https: bool) -> None:
    """Give a browser a token that no script can read; 0 seconds removes it.

    Requests from other sites contain it only for links (`lax`): a link from a chat shows the page, and
    displaying a page never changes anything.
    """
    response.set_cookie(
        cookie_name(name, is_https=is_https),
        token,
        max_age=seconds,
        path="/",
        secure=is_https,
        httponly=True,
        samesite="lax",
    )


def check_origin(request: Request, public_origin: str) -> None:
    """Raise ForgedForm if the browser's headers show that a form comes from another site.

    `public_origin` is the public address behind a proxy; empty if unknown. Behind a proxy that is not
    trusted, the server does not know that browsers use TLS: a page over TLS of the same host is accepted,
    too.
    """
    fetched = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    host = request.headers.get("host", "").lower()
    ours = {f"{request.url.scheme}://{host}", f"https://{host}", public_origin} if host else {public_origin}
    is_ours = origin is None or (origin != "" and origin.lower() in ours)
    if not (is_ours and fetched in {"same-origin", "none"}):
        raise ForgedForm


def check_form_token(text: str, token: str) -> None:
    """Raise ForgedForm unless `text`, the token in a form, was made for the session with this token."""
    if not token or not hmac.compare_digest(text.encode(), form_token(token).encode()):
        raise ForgedForm


def check_sender(visitor: Visitor, token: str, form: Mapping[str, str]) -> None:
    """Raise UnconfirmedForm unless a form comes from the browser that began the session with this token.

    It must contain the browser's secret, or the key if that browser sent no secret.
    """
    if visitor.must_enter_key:
        is_sender = hmac.compare_digest(digest_of(form.get("key", "").strip()), visitor.digest)
    else:
        sent = digest_of_token(form.get(PROOF_FIELD, ""))
        is_sender = hmac.compare_digest(sent, token.rpartition(_DIGEST_MARK)[2])
    if not is_sender:
        raise UnconfirmedForm(has_secret=not visitor.must_enter_key)


def digest_of_token(token: str) -> str:
    """Return the stored form of a session's token: SHA-256, hexadecimal."""
    return sha256(token.encode()).hexdigest()
