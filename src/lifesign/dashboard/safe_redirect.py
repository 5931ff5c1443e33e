"""Where does somebody go on who has logged in?

To the page that was asked for, as the query of the login page and its form name it: anybody may have
written that, so it is a path of this server or nothing. What a browser might take for another site is
none: two slashes at the beginning, a backslash for one of them, a tab or a line break between them.
"""

import re
from typing import Final
from urllib.parse import quote, urlencode

from starlette.requests import Request

from lifesign.dashboard.flash import page_of

LOGIN_PATH: Final = "/login"
MEMBER: Final = "next"
"""Of the query and of the form."""
FORM_MEMBER: Final = "form"
UNDONE: Final = "undone"
"""Of the query of the login page, where a form has led to it."""
HOME: Final = "/"
MAX_CHARACTERS: Final = 2_048

# No part of a path of ours is empty, and none has a backslash, a space or a control character.
_PART = r"[A-Za-z0-9._~:@!$&'()*+,;=%-]+"
_OWN_PATH: Final = re.compile(rf"/(?:{_PART}(?:/{_PART})*)?(?:\?[A-Za-z0-9._~:@!$&'()*+,;=%/?-]*)?")
_BACK_AND_FORTH: Final = frozenset({LOGIN_PATH, "/logout"})


def own_path(said: str) -> str:
    """Return a path of this server, with its query, as it was said; `HOME` for everything else."""
    is_own = len(said) <= MAX_CHARACTERS and _OWN_PATH.fullmatch(said) is not None
    return said if is_own and said.partition("?")[0] not in _BACK_AND_FORTH else HOME


def login_path(request: Request) -> str:
    """Return where to log in, so as to come back to the page that was asked for, or from which a form is."""
    is_form = request.method == "POST"
    path = own_path(page_of(request).where) if is_form else _page_asked_for(request)
    members = ({} if path == HOME else {MEMBER: path}) | ({FORM_MEMBER: UNDONE} if is_form else {})
    return f"{LOGIN_PATH}?{urlencode(members)}" if members else LOGIN_PATH


def is_after_undone_form(request: Request) -> bool:
    """Whether a form led to the login, and did nothing but that."""
    return request.query_params.get(FORM_MEMBER) == UNDONE


def _page_asked_for(request: Request) -> str:
    """Return the page of a request; without its query where that has what no path of ours has."""
    path, query = quote(request.url.path), request.scope["query_string"].decode("latin-1")
    whole = own_path(f"{path}?{query}" if query else path)
    return own_path(path) if whole == HOME else whole
