"""The body of an error: one shape for every server."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

REFUSAL_MEMBER = "lifesign.refusal"
"""Member of an ASGI scope: why the request was refused, as a code of the API."""

RETRY_SECONDS = 2
"""Retry time while the database is unreachable."""


def problem(
    status: int,
    code: str,
    message: str,
    *,
    hint: str = "",
    details: Mapping[str, Any] = MappingProxyType({}),
    headers: Mapping[str, str] | None = None,
    is_expected: bool = False,
    **members: Any,
) -> Response:
    """Return an error: `{"error": {"code", "message", "details", "hint"?}, "message"}` and other members.

    `is_expected`: whether callers that behave correctly get it, so that it is not logged as `call.refused`.
    """
    error: dict[str, Any] = {"code": code, "message": message, "details": dict(details)}
    if hint:
        error["hint"] = hint
    return RefusalResponse(
        None if is_expected else code,
        to_json({"error": error, "message": message, **members}),
        status,
        {**(headers or {}), "Cache-Control": "no-store"},
        "application/json",
    )


class RefusalResponse(Response):
    """A response that also gives the access log the reason of the refusal; `code` None: it is not logged."""

    def __init__(
        self, code: str | None, content: bytes, status: int, headers: Mapping[str, str], kind: str
    ) -> None:
        super().__init__(content, status, headers, kind)
        self._code = code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        scope[REFUSAL_MEMBER] = self._code
        await super().__call__(scope, receive, send)
