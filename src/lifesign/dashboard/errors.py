"""Errors of the dashboard's sessions and forms."""

from lifesign.errors import LifesignError


class NotLoggedIn(LifesignError):
    """The visitor is not logged in, and reading is not open to everyone."""

    def __init__(self) -> None:
        super().__init__("log in first")


class UnknownHost(LifesignError):
    """A page of the dashboard was requested under a host name that the server does not serve."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"this server does not serve the host {host[:80]!r}: use its IP address, or the host of its "
            "setting public_url (--public-url)"
        )
        self.host = host


class UnconfirmedForm(LifesignError):
    """A form has the session's cookie, and not the secret of the browser that logged in, or its key."""

    def __init__(self, *, has_secret: bool) -> None:
        super().__init__(
            "this browser did not log in at this address and port, or its storage was emptied: log out, and "
            "log in again"
            if has_secret
            else "the key is not that of this session: enter the key with which you logged in"
        )


class ForgedForm(LifesignError):
    """A form does not come from a page of this session."""

    def __init__(self) -> None:
        super().__init__("this form does not belong to this session: reload the page and try again")
