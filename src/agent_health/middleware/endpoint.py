"""What is answered at /.well-known/agent-health? (draft 4.1, 7 and 8)"""

import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from agent_health.document import HealthDocument, coarse, health_check_form
from agent_health.middleware.board import Notice
from agent_health.middleware.exchange import Scope, Send
from agent_health.middleware.recorder import AgentHealth
from agent_health.middleware.settings import MiddlewareSettings

_JSON = b"application/json"
_HEALTH_JSON = b"application/health+json"
_NEGOTIATING = frozenset({b"accept", b"if-none-match", b"authorization"})
_MOST_HEADER_BYTES = 4096
"""A longer Accept or If-None-Match is as good as none."""


@dataclass(frozen=True, slots=True)
class _Representation:
    """The document in one form and detail, ready to be sent."""

    status: int
    body: bytes
    etag: bytes
    headers: tuple[tuple[bytes, bytes], ...]

    @classmethod
    def of(cls, status: int, content_type: bytes, body: bytes) -> "_Representation":
        etag = b'"%s"' % sha256(body).hexdigest()[:32].encode()
        return cls(
            status,
            body,
            etag,
            (
                (b"content-type", content_type),
                (b"content-length", b"%d" % len(body)),
                (b"etag", etag),
                (b"vary", b"Accept, Authorization"),
                (b"access-control-allow-origin", b"*"),
            ),
        )


class HealthEndpoint:
    """Answers GET and HEAD with the published document, always 200 whatever the status.

    A 5xx would read as "the request failed" (draft, appendix A). The exception is the form of
    draft-inadarei-api-health-check-06, for whom asks for `application/health+json`: 503 if unhealthy.
    """

    def __init__(self, recorder: AgentHealth, settings: MiddlewareSettings) -> None:
        self._recorder = recorder
        self._is_coarse = settings.detail == "coarse"
        token = settings.detail_token
        self._token = None if token is None else token.get_secret_value().encode()
        self._notice: Notice | None = None
        self._forms: dict[tuple[bool, bool], _Representation] = {}
        """By (is full detail, is application/health+json)."""

    async def __call__(self, scope: Scope, send: Send) -> None:
        """Answer one request at the health path."""
        method = scope["method"]
        if method not in {"GET", "HEAD"}:
            await _refuse(send, 405, "only GET and HEAD are answered here", (b"allow", b"GET, HEAD"))
            return
        asked = _by_name(scope["headers"])
        is_full = not self._is_coarse
        if self._token is not None and (token := _bearer_token(asked)) is not None:
            if not hmac.compare_digest(token, self._token):
                challenge = (b"www-authenticate", b'Bearer error="invalid_token"')
                await _refuse(
                    send, 401, "the token is not valid; without one, the basic state is public", challenge
                )
                return
            is_full = True
        now_ns = self._recorder.clock.monotonic_ns()
        is_health_json = b"accept" in asked and _prefers_health_json(asked[b"accept"])
        form = self._form(self._recorder.published(now_ns), (is_full, is_health_json))
        headers = [
            *form.headers,
            (b"cache-control", self._caching(now_ns, is_private=is_full and self._is_coarse)),
        ]
        is_known = (
            b"if-none-match" in asked and form.status == 200 and _matches(asked[b"if-none-match"], form.etag)
        )
        if is_known:
            headers = [header for header in headers if header[0] not in {b"content-type", b"content-length"}]
        await send(
            {"type": "http.response.start", "status": 304 if is_known else form.status, "headers": headers}
        )
        await send({"type": "http.response.body", "body": b"" if is_known or method == "HEAD" else form.body})

    def _form(self, notice: Notice, form: tuple[bool, bool]) -> _Representation:
        if notice is not self._notice:
            self._notice = notice
            self._forms = {}
        if form not in self._forms:
            self._forms[form] = _represent(notice.document, *form)
        return self._forms[form]

    def _caching(self, now_ns: int, *, is_private: bool) -> bytes:
        seconds = self._recorder.seconds_to_refresh(now_ns)
        return b"private, max-age=%d" % seconds if is_private else b"max-age=%d" % seconds


def _represent(published: bytes, is_full: bool, is_health_json: bool) -> _Representation:  # noqa: FBT001
    if is_full and not is_health_json:
        return _Representation.of(200, _JSON, published)
    document = HealthDocument.model_validate_json(published)
    if not is_full:
        document = coarse(document)
    if not is_health_json:
        return _Representation.of(200, _JSON, document.to_json())
    status, body = health_check_form(document)
    return _Representation.of(status, _HEALTH_JSON, json.dumps(body, separators=(",", ":")).encode())


def _by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the request's headers by name; several lines mean the same as one (RFC 9110 5.3)."""
    headers = list(headers)
    by_name = dict(headers)
    if len(by_name) < len(headers):
        for wanted in by_name.keys() & _NEGOTIATING:
            by_name[wanted] = b",".join([value for name, value in headers if name == wanted])
    return by_name


def _bearer_token(asked: Mapping[bytes, bytes]) -> bytes | None:
    scheme, _, token = asked.get(b"authorization", b"").partition(b" ")
    return token.strip() if token and scheme.lower() == b"bearer" else None


def _prefers_health_json(accept: bytes) -> bool:
    """Whether `application/health+json` is asked for by name, and more than `application/json`."""
    if len(accept) > _MOST_HEADER_BYTES or _HEALTH_JSON not in (accept := accept.lower()):
        return False
    quality = {_JSON: 0.0, _HEALTH_JSON: 0.0}
    for item in accept.split(b","):
        media_type, *parameters = (part.strip() for part in item.split(b";"))
        if media_type in quality:
            quality[media_type] = _quality(parameters)
    return quality[_HEALTH_JSON] > quality[_JSON]


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
    """Whether an If-None-Match header names our entity tag (RFC 9110 13.1.2, weak comparison)."""
    if len(if_none_match) > _MOST_HEADER_BYTES:
        return False
    if if_none_match.strip() == b"*":
        return True
    return any(tag.strip().removeprefix(b"W/") == etag for tag in if_none_match.split(b","))


async def _refuse(send: Send, status: int, reason: str, header: tuple[bytes, bytes]) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = [
        (b"content-type", _JSON),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"access-control-allow-origin", b"*"),
        header,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
