"""Redirect after a login.

The destination is the page in the query of the login page and in its form. Others may have written that
query: only a path of this server is accepted. Texts that a browser could take for another site are refused:
two slashes at the beginning, a backslash for one of them, a tab or a line break between them.
"""

import re
from typing import Final
from urllib.parse import quote, urlencode

from starlette.requests import Request

from lifesign.dashboard.flash import page_of

LOGIN_PATH: Final = "/login"
MEMBER: Final = "next"
"""Parameter of the query and of the form."""
FORM_MEMBER: Final = "form"
UNDONE: Final = "undone"
"""Parameter of the login page's query after a form."""
HOME_PATH: Final = "/"
MAX_CHARACTERS: Final = 2_048

# No part of a path of ours is empty, and none has a backslash, a space or a control character.
_PART = r"[A-Za-z0-9._~:@!$&'()*+,;=%-]+"
_LOCAL_PATH: Final = re.compile(rf"/(?:{_PART}(?:/{_PART})*)?(?:\?[A-Za-z0-9._~:@!$&'()*+,;=%/?-]*)?")
_BACK_AND_FORTH: Final = frozenset({LOGIN_PATH, "/logout"})


def local_path(text: str) -> str:
    """Return `text` if it is a path of this server, with or without a query; else `HOME_PATH`."""
    is_own = len(text) <= MAX_CHARACTERS and _LOCAL_PATH.fullmatch(text) is not None
    return text if is_own and text.partition("?")[0] not in _BACK_AND_FORTH else HOME_PATH


def login_path(request: Request) -> str:
    """Return the URL of the login page that returns to the requested page, or to the page of a form."""
    is_form = request.method == "POST"
    path = local_path(page_of(request).where) if is_form else _requested_page(request)
    members = ({} if path == HOME_PATH else {MEMBER: path}) | ({FORM_MEMBER: UNDONE} if is_form else {})
    return f"{LOGIN_PATH}?{urlencode(members)}" if members else LOGIN_PATH


def was_form_refused(request: Request) -> bool:
    """Return whether a form led to the login, without any other effect."""
    return request.query_params.get(FORM_MEMBER) == UNDONE


def _requested_page(request: Request) -> str:
    """Return the page of a request; without its query if that has characters that no query of ours has."""
    path, query = quote(request.url.path), request.scope["query_string"].decode("latin-1")
    whole = local_path(f"{path}?{query}" if query else path)
    return local_path(path) if whole == HOME_PATH else whole
