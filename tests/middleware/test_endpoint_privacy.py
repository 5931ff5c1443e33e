import logging
import platform
import socket
import sys
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import starlette
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from tests.support.asgi_client import Answer, ask
from tests.support.hand_clock import HandClock
from tests.support.scripted import app_of, final, start

import lifesign
from lifesign import AgentHealthMiddleware, Outcome
from lifesign.middleware import health_reporter

HEALTH = "/.well-known/agent-health"
FORM = b"application/health+json"
TOKEN = "tok3n-that-nobody-may-see"
COUNTS = {
    "healthy": {Outcome.ANSWERED: 20},
    "degraded": {Outcome.ANSWERED: 15, Outcome.RAISED: 5},
    "unhealthy": {Outcome.ANSWERED: 5, Outcome.RAISED: 15},
    "unknown": {Outcome.ANSWERED: 9},
}


def agent(status: str = "degraded", **given: Any) -> AgentHealthMiddleware:
    clock = HandClock()
    app = app_of([start(), final(b"the app")], clock)
    middleware = AgentHealthMiddleware(
        app,
        agent_id="agent",
        clock=clock.clock,
        model_changed_at=datetime(2025, 1, 1, tzinfo=UTC),
        capabilities_updated_at=datetime(2025, 1, 1, tzinfo=UTC),
        baseline_p99_ms=700,
        **given,
    )
    for outcome, count in COUNTS[status].items():
        for _ in range(count):
            middleware.health.record(outcome, latency_ms=20, first_byte_ms=10)
    return middleware


def coarse(status: str = "degraded", token: str | None = TOKEN) -> AgentHealthMiddleware:
    return agent(status, detail="coarse", detail_token=token)


async def get(app: AgentHealthMiddleware, *headers: tuple[bytes, bytes], method: str = "GET") -> Answer:
    return await ask(app, HEALTH, method=method, headers=list(headers))


def bearer(token: str | bytes, scheme: bytes = b"Bearer") -> tuple[bytes, bytes]:
    return (b"authorization", scheme + b" " + (token.encode() if isinstance(token, str) else token))


def is_full(answer: Answer) -> bool:
    return "calibration" in answer.json()


# Coarse detail.


@pytest.mark.parametrize(
    ("status", "published"),
    [("healthy", "healthy"), ("degraded", "healthy"), ("unhealthy", "unhealthy"), ("unknown", "unknown")],
)
@pytest.mark.parametrize("token", [None, TOKEN])
async def test_coarse_document_shows_only_the_state(status: str, published: str, token: str | None) -> None:
    answer = await get(coarse(status, token))
    assert answer.status == 200
    document = answer.json()
    assert set(document) == {"schema_version", "agent_id", "timestamp", "health"}
    assert document["health"] == {"status": published}


@pytest.mark.parametrize(
    ("status", "message", "http_status"),
    [
        ("healthy", "pass", 200),
        ("degraded", "pass", 200),
        ("unhealthy", "fail", 503),
        ("unknown", "warn", 200),
    ],
)
async def test_health_json_format_is_as_coarse(status: str, message: str, http_status: int) -> None:
    answer = await get(coarse(status), (b"accept", FORM))
    assert (answer.status, answer.json()["status"]) == (http_status, message)
    assert set(answer.json()) <= {"status", "serviceId", "description"}
    assert "degraded" not in answer.body.decode()


@pytest.mark.parametrize("scheme", [b"Bearer", b"bearer", b"BEARER"])
@pytest.mark.parametrize("accept", [b"application/json", FORM])
async def test_token_gets_a_private_full_document(scheme: bytes, accept: bytes) -> None:
    answer = await get(coarse(), bearer(TOKEN, scheme), (b"accept", accept))
    assert answer.status == 200
    assert answer.body == (await get(agent(), (b"accept", accept))).body
    assert "private" in (answer.header("cache-control") or "")
    assert "max-age=" in (answer.header("cache-control") or "")
    assert "Authorization" in (answer.header("vary") or "")


async def test_public_document_is_cacheable_with_its_own_etag() -> None:
    middleware = coarse()
    public, private = await get(middleware), await get(middleware, bearer(TOKEN))
    assert "private" not in (public.header("cache-control") or "")
    assert "Authorization" in (public.header("vary") or "")
    assert public.header("etag") != private.header("etag")
    asked = (b"if-none-match", (private.header("etag") or "").encode())
    assert (await get(middleware, bearer(TOKEN), asked)).status == 304
    assert (await get(middleware, asked)).status == 200


WRONG = [
    b"",
    b"x",
    TOKEN[:-1].encode(),
    TOKEN.encode() + b"x",
    TOKEN.upper().encode(),
    b"\xff\xfe",
    "pässwörd".encode(),
    b"x" * 100_000,
    TOKEN.encode() + b"\x00",
    TOKEN.encode() + b" " + TOKEN.encode(),
]


@pytest.mark.parametrize("token", WRONG)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_wrong_token_gets_no_more_than_the_public_document(token: bytes, method: str) -> None:
    answer = await get(coarse(), bearer(token), method=method)
    assert answer.status in {200, 401}
    assert b"calibration" not in answer.body
    assert TOKEN.encode() not in answer.body
    if answer.status == 401:
        assert (answer.header("www-authenticate") or "").startswith("Bearer")
        assert answer.header("cache-control") == "no-store"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"Bearer",
        b"Basic " + b64encode(b"user:" + TOKEN.encode()),
        b"Basic " + TOKEN.encode(),
        TOKEN.encode(),
        b"Bearer" + TOKEN.encode(),
        b"Token " + TOKEN.encode(),
        b"\xff",
    ],
)
async def test_another_authorization_scheme_gets_the_public_document(value: bytes) -> None:
    """A caller may be authenticated to the agent in another way."""
    answer = await get(coarse(), (b"authorization", value))
    assert answer.status == 200
    assert answer.body == (await get(coarse())).body


async def test_bearer_token_is_ignored_if_none_is_configured() -> None:
    for token in (TOKEN, "", "None"):
        answer = await get(coarse(token=None), bearer(token))
        assert answer.status == 200
        assert not is_full(answer)


@pytest.mark.parametrize("value", [bearer(TOKEN), bearer(b"\xff"), (b"authorization", b"Basic x")])
async def test_full_detail_ignores_tokens(value: tuple[bytes, bytes]) -> None:
    answer = await get(agent(), value)
    assert answer.status == 200
    assert is_full(answer)
    assert "private" not in (answer.header("cache-control") or "")


# Nothing internal, in any form (B28).

SECRET_PATH = "/canary-path/7f3a"
SECRET_TEXT = "canary-exception-text"
SECRET_ADDRESS = "203.0.113.77"
CANARIES = [
    SECRET_PATH,
    "canary",
    SECRET_TEXT,
    SECRET_ADDRESS,
    "50123",
    "127.0.0.1",
    "agent.test",
    # A host may be named "a".
    socket.gethostname() if len(socket.gethostname()) > 4 else SECRET_PATH,
    platform.python_version(),
    sys.executable,
    str(Path(lifesign.__file__).parent),
    lifesign.__name__,
    starlette.__version__,
    "starlette",
    "uvicorn",
    "python",
    "Traceback",
    "ValueError",
    TOKEN,
    "server",
]


def requests_of_every_kind() -> list[tuple[dict[str, Any], str]]:
    forms = [(b"accept", b"application/json"), (b"accept", FORM)]
    tokens = [(b"x-none", b""), bearer(TOKEN), bearer("wrong-token"), (b"authorization", b"Basic x")]
    return [
        ({"headers": [form, token], "method": method}, f"{method} {form[1]!r} {token[1]!r}")
        for form in forms
        for token in tokens
        for method in ("GET", "HEAD", "POST", "OPTIONS")
    ]


@pytest.mark.parametrize("detail", [{}, {"detail": "coarse"}, {"detail": "coarse", "detail_token": TOKEN}])
@pytest.mark.parametrize("is_broken", [False, True])
async def test_no_response_contains_internal_details(
    *,
    detail: dict[str, Any],
    is_broken: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)

    async def fail(request: Request) -> None:
        raise ValueError(SECRET_TEXT)

    def fail_to_report(*_: Any, **__: Any) -> None:
        raise ValueError(SECRET_TEXT)

    app = Starlette(routes=[Route(SECRET_PATH, fail)])
    middleware = AgentHealthMiddleware(
        app, agent_id="urn:a", state_dir=tmp_path / "canary", clock=HandClock().clock, **detail
    )
    for _ in range(20):
        with pytest.raises(ValueError, match=SECRET_TEXT):
            await ask(middleware, SECRET_PATH, client=(SECRET_ADDRESS, 50_123))
    if is_broken:
        monkeypatch.setattr(health_reporter, "self_report", fail_to_report)
    for request, name in requests_of_every_kind():
        answer = await ask(middleware, HEALTH, client=(SECRET_ADDRESS, 50_123), **request)
        result = answer.body + b"\n".join(b": ".join(pair) for pair in answer.headers)
        # Our own extensions are named for where they are documented.
        text = result.decode().replace("io.github.lifesign.", "").lower()
        text = text.replace("server_fault", "")
        assert [canary for canary in CANARIES if canary.lower() in text] == [], name
    middleware.health.close()


async def test_full_document_has_only_members_of_the_draft() -> None:
    document = (await get(agent("healthy"))).json()
    assert set(document) == {
        "schema_version", "agent_id", "timestamp", "health", "calibration", "decay", "extensions",
    }  # fmt: skip
    assert set(document["health"]) == {"status", "last_healthy_at", "uptime_seconds"}
    assert set(document["calibration"]) == {
        "response_ratio", "error_ratio", "latency_p50_ms", "latency_p99_ms",
        "measurement_window_seconds", "sample_count",
    }  # fmt: skip
    assert set(document["decay"]) == {
        "calibration_trend", "days_since_model_change", "last_capability_update",
    }  # fmt: skip
    assert all(key.startswith("io.github.lifesign.") for key in document["extensions"])
