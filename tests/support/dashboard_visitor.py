"""Reads pages as a browser does, and sends the secret that a script adds to forms."""

import http.client
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import unescape
from http.cookies import SimpleCookie
from urllib.parse import urlencode, urlsplit

from tests.support.servers import PATIENCE_SECONDS


@dataclass(frozen=True)
class Page:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case."""
    cookies: tuple[str, ...]
    body: bytes

    @property
    def html(self) -> str:
        return self.body.decode()

    @property
    def text(self) -> str:
        """Return its text without markup, in one line."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.html)).split())

    @property
    def title(self) -> str:
        return unescape(self.html.partition("<title>")[2].partition("</title>")[0])

    def form_token(self) -> str:
        """The token of a form on the page."""
        found = re.search(r'name="token" value="([0-9a-f]{64})"', self.html)
        assert found is not None, "there is no form on this page"
        return found[1]


@dataclass
class Visitor:
    """A person with a browser that stores cookies."""

    url: str
    cookies: dict[str, str] = field(default_factory=dict)
    trusts: ssl.SSLContext | None = None
    """The accepted certificates; None: the server has none."""
    address: str = "127.0.0.1"
    """The visitor's own address."""
    secret: str = "the secret of a browser"
    """Secret that the script adds to forms; empty in a browser without scripts."""

    def get(self, path: str, **headers: str) -> Page:
        """Load a page; redirects are not followed."""
        return self._ask("GET", path, None, {"accept": "text/html", **headers})

    def post(self, path: str, form: Mapping[str, str], **headers: str) -> Page:
        """Send a form as a browser does."""
        sent = {
            "origin": self.url,
            "sec-fetch-site": "same-origin",
            "content-type": "application/x-www-form-urlencoded",
            **headers,
        }
        confirmed = {"browser_secret": self.secret, **form} if self.secret else form
        return self._ask("POST", path, urlencode(confirmed).encode(), sent)

    def log_in(self, key: str) -> Page:
        """Log in with a key."""
        return self.post("/login", {"key": key, "token": self.get("/login").form_token()})

    def do(self, page: str, path: str, **fields: str) -> Page:
        """Send a form of a page that was loaded just now."""
        return self.post(path, {"token": self.get(page).form_token(), **fields})

    def connection(self) -> http.client.HTTPConnection:
        """Return a new connection to the server."""
        place, source = urlsplit(self.url).netloc, (self.address, 0)
        if self.trusts is None:
            return http.client.HTTPConnection(place, timeout=PATIENCE_SECONDS, source_address=source)
        return http.client.HTTPSConnection(
            place, timeout=PATIENCE_SECONDS, source_address=source, context=self.trusts
        )

    def _ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Page:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection = self.connection()
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            page = Page(
                status=answer.status,
                headers={name.lower(): value for name, value in answer.getheaders()},
                cookies=tuple(answer.headers.get_all("set-cookie") or ()),
                body=answer.read(),
            )
        finally:
            connection.close()
        for cookie in page.cookies:
            for name, morsel in SimpleCookie(cookie).items():
                self.cookies[name] = morsel.value
                if morsel["max-age"] == "0":
                    del self.cookies[name]
        return page
