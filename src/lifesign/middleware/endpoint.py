"""Answers at /.well-known/agent-health (draft 4.1, 7 and 8)."""

import hmac
import json
from collections.abc import Iterable, Mapping
from hashlib import sha256

from lifesign.domain.health.document import HealthDocument, coarse, health_check_form
from lifesign.middleware.body import Message
from lifesign.middleware.exchange import Scope
from lifesign.middleware.published_document import PublishedDocument
from lifesign.middleware.recorder import AgentHealth
from lifesign.middleware.settings import MiddlewareSettings

Headers = list[tuple[bytes, bytes]]

_JSON = b"application/json"
_HEALTH_JSON = b"application/health+json"
# Ranges that `application/json` matches, the most specific first.
_RANGES = (_JSON, b"application/*", b"*/*")
_OF_THE_BODY = frozenset({b"content-type", b"content-length"})
_NEGOTIATING = frozenset({b"accept", b"if-none-match", b"authorization"})
_MOST_HEADER_BYTES = 4096
"""A longer Accept or If-None-Match is as good as none."""


class _Representation:
    """The document in one form and detail, ready to be sent."""

    def __init__(self, status: int, content_type: bytes, body: bytes, caching: bytes) -> None:
        self.status = status
        self.body = body
        self.etag = b'"%s"' % sha256(body).hexdigest()[:32].encode()
        self._caching = caching
        self._seconds = -1
        self._headers: Headers = [
            (b"content-type", content_type),
            (b"content-length", b"%d" % len(body)),
            (b"etag", self.etag),
            (b"vary", b"Accept, Authorization"),
            (b"access-control-allow-origin", b"*"),
        ]

    def headers(self, seconds: int) -> Headers:
        """Return the headers of an answer that clients may cache for `seconds`."""
        if seconds != self._seconds:
            self._seconds = seconds
            self._headers[5:] = [(b"cache-control", self._caching % seconds)]
        # A separate list for each answer: an outer middleware may change it.
        return [*self._headers]


class HealthEndpoint:
    """Answers requests for the health document. The HTTP status is 200 for every health status.

    A 5xx would read as "the request failed" (draft, appendix A). The exception is the form of
    draft-inadarei-api-health-check-06, if a request prefers `application/health+json`: 503 if unhealthy.
    """

    def __init__(self, recorder: AgentHealth, settings: MiddlewareSettings) -> None:
        self._recorder = recorder
        self._is_coarse = settings.detail == "coarse"
        token = settings.detail_token
        self._token = None if token is None else token.get_secret_value().encode()
        self._notice: PublishedDocument | None = None
        self._forms: dict[tuple[bool, bool], _Representation] = {}
        """Forms of the document by (is full detail, is application/health+json)."""
        self._now_ns = recorder.clock.monotonic_ns

    def answer(self, scope: Scope) -> tuple[Message, Message]:
        """Return the two ASGI messages that answer a request at the health path."""
        method = scope["method"]
        if method not in {"GET", "HEAD"}:
            return _refusal(405, "only GET and HEAD are allowed here", (b"allow", b"GET, HEAD"))
        negotiated = _negotiating(scope["headers"])
        is_full = not self._is_coarse
        if self._token is not None and (token := _bearer_token(negotiated)) is not None:
            if not hmac.compare_digest(token, self._token):
                challenge = (b"www-authenticate", b'Bearer error="invalid_token"')
                return _refusal(
                    401, "the token is not valid; without one, the basic state is public", challenge
                )
            is_full = True
        is_health_json = b"accept" in negotiated and _prefers_health_json(negotiated[b"accept"])
        now_ns = self._now_ns()
        notice = self._recorder.published(now_ns)
        if notice is not self._notice:
            self._notice = notice
            self._forms = {}
        form = self._forms.get((is_full, is_health_json)) or self._form(notice, is_full, is_health_json)
        headers = form.headers(self._recorder.seconds_to_refresh(now_ns))
        if (
            b"if-none-match" in negotiated
            and form.status == 200
            and _matches(negotiated[b"if-none-match"], form.etag)
        ):
            return _messages(304, [header for header in headers if header[0] not in _OF_THE_BODY], b"")
        return _messages(form.status, headers, b"" if method == "HEAD" else form.body)

    def _form(self, notice: PublishedDocument, is_full: bool, is_health_json: bool) -> _Representation:  # noqa: FBT001
        caching = b"private, max-age=%d" if is_full and self._is_coarse else b"max-age=%d"
        form = _represent(notice.document, caching, is_full=is_full, is_health_json=is_health_json)
        self._forms[is_full, is_health_json] = form
        return form


def _represent(published: bytes, caching: bytes, *, is_full: bool, is_health_json: bool) -> _Representation:
    if is_full and not is_health_json:
        return _Representation(200, _JSON, published, caching)
    document = HealthDocument.model_validate_json(published)
    if not is_full:
        document = coarse(document)
    if not is_health_json:
        return _Representation(200, _JSON, document.to_json(), caching)
    status, body = health_check_form(document)
    json_body = json.dumps(body, separators=(",", ":")).encode()
    return _Representation(status, _HEALTH_JSON, json_body, caching)


def _negotiating(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the relevant request headers; several lines are joined into one (RFC 9110 5.3)."""
    negotiated: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _NEGOTIATING:
            if name not in negotiated:
                negotiated[name] = value
            elif len(negotiated[name]) <= _MOST_HEADER_BYTES:
                negotiated[name] += b"," + value
    return negotiated


def _bearer_token(headers: Mapping[bytes, bytes]) -> bytes | None:
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token.strip() if token and scheme.lower() == b"bearer" else None


def _prefers_health_json(accept: bytes) -> bool:
    """Return whether `application/health+json` is requested, with no lower quality than `application/json`.

    The quality of `application/json` is that of the most specific range that it matches (RFC 9110 12.5.1).
    Between two equal ones, a named type wins over a range, and `application/json` over the other.
    """
    if len(accept) > _MOST_HEADER_BYTES or _HEALTH_JSON not in (accept := accept.lower()):
        return False
    quality: dict[bytes, float] = {}
    for item in accept.split(b","):
        media_type, *parameters = (part.strip() for part in item.split(b";"))
        if media_type in _RANGES or media_type == _HEALTH_JSON:
            quality[media_type] = _quality(parameters)
    wanted = quality.get(_HEALTH_JSON, 0.0)
    if _JSON in quality:
        return wanted > quality[_JSON]
    others = next((quality[media_range] for media_range in _RANGES if media_range in quality), 0.0)
    return wanted > 0 and wanted >= others


def _quality(parameters: list[bytes]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0


def _matches(if_none_match: bytes, etag: bytes) -> bool:
    """Return whether an If-None-Match header contains the entity tag (RFC 9110 13.1.2, weak comparison)."""
    if len(if_none_match) > _MOST_HEADER_BYTES:
        return False
    if if_none_match.strip() == b"*":
        return True
    return any(tag.strip().removeprefix(b"W/") == etag for tag in if_none_match.split(b","))


def _refusal(status: int, reason: str, header: tuple[bytes, bytes]) -> tuple[Message, Message]:
    body = json.dumps({"error": reason}).encode()
    headers = [
        (b"content-type", _JSON),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"access-control-allow-origin", b"*"),
        header,
    ]
    return _messages(status, headers, body)


def _messages(status: int, headers: Headers, body: bytes) -> tuple[Message, Message]:
    return (
        {"type": "http.response.start", "status": status, "headers": headers},
        {"type": "http.response.body", "body": body},
    )
