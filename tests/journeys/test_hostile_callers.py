"""Requests that no honest client sends.

Raw bytes over real sockets against a real server. Each request is refused with the right code or does
no harm: nothing is half-written, no secret is shown, no internal error is logged, and the next caller is
served as usual.
"""

import gzip
import json
import logging
from collections.abc import Iterator

import pytest
from tests.support.raw_http import RawAnswer, exchange, request
from tests.support.registry_server import ADMIN_KEY, KEYS, RegistryServer, registry_server
from tests.support.servers import PATIENCE_SECONDS

from lifesign.domain.access.permissions import Role, key_of
from lifesign.registry.request_handling import body_timeout, execution

AGENTS = "/api/v1/agents"
LEASES = "/api/v1/leases"


class Attacked:
    """A server under attack, with two agents in it."""

    def __init__(self, server: RegistryServer) -> None:
        self.server = server
        self.keys = {
            agent_id: self.ask(
                request("POST", AGENTS, json.dumps({"agent_id": agent_id}).encode(), key=ADMIN_KEY)
            ).json()["agent_key"]
            for agent_id in ("one", "two")
        }
        self.state = self._state()

    def ask(self, *parts: bytes, seconds: float = PATIENCE_SECONDS) -> RawAnswer:
        return exchange(self.server.port, *parts, seconds=seconds)

    def post(self, path: str, body: bytes, *headers: bytes, key: str = ADMIN_KEY) -> RawAnswer:
        return self.ask(request("POST", path, body, key=key, headers=headers))

    def _state(self) -> list[bytes]:
        """All that can be seen: nothing of it may change by a request that is refused."""
        paths = [AGENTS, LEASES, "/api/v1/events?limit=1000", "/api/v1/keys"]
        return [self.ask(request("GET", path, key=ADMIN_KEY)).body for path in paths]

    def accept_changes(self) -> None:
        """Take what can be seen now as the state that the next test must not change."""
        self.state = self._state()

    def check(self) -> None:
        """Nothing has changed since the last look."""
        before, self.state = self.state, self._state()
        assert self.state == before


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with registry_server(
        tmp_path_factory.mktemp("registry"), dialects=("openintent",), sweep_seconds=60
    ) as server:
        yield Attacked(server)


@pytest.fixture
def target(attacked: Attacked, caplog: pytest.LogCaptureFixture) -> Iterator[Attacked]:
    """The server; after the attack nothing has changed, and nothing was logged as an error of ours."""
    yield attacked
    attacked.check()
    faults = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not faults, [record.getMessage() for record in faults]
    assert ADMIN_KEY not in caplog.text


def assert_refused(answer: RawAnswer, status: int, code: str) -> None:
    assert (answer.status, answer.code) == (status, code), (answer.head, answer.body[:300])
    error = answer.json()["error"]
    assert set(error) - {"hint"} == {"code", "message", "details"}
    assert answer.json()["message"] == error["message"]
    for message in (answer.head, answer.body.decode()):
        assert "Traceback" not in message
        assert "ahk_" not in message
        assert "sqlite" not in message.lower()


# ── keys ──

HEARTBEAT = b'{"status": "active", "client_timestamp": "2026-02-08T10:30:00Z"}'
GOOD = {f"{AGENTS}/one/heartbeat": HEARTBEAT, LEASES: b'{"resource": "r"}'}


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (b"X-API-Key: ",),
        (b"X-API-Key: ahk_",),
        (b"X-API-Key: " + key_of(b"z" * 32).encode(),),
        (b"X-API-Key: " + ADMIN_KEY.encode() + b"x",),
        (b"X-API-Key: " + ADMIN_KEY.swapcase().encode(),),
        (b"X-API-Key: \xc3\xa4" * 40,),
        (b"X-API-Key: " + b"A" * 60_000,),
        (b"Authorization: Basic " + ADMIN_KEY.encode(),),
        (b"Authorization: Bearer",),
        (b"Authorization: Bearer\t" + ADMIN_KEY.encode(),),
        (b"Cookie: X-API-Key=" + ADMIN_KEY.encode(),),
        (b"X-API-Key: " + ADMIN_KEY.encode(), b"X-API-Key: " + KEYS[Role.READER].encode()),
        (b"X-API-Key: " + KEYS[Role.READER].encode(), b"X-API-Key: " + ADMIN_KEY.encode()),
        (b"X-API-Key: nonsense", b"Authorization: Bearer " + ADMIN_KEY.encode()),
    ],
    ids=lambda headers: str(headers)[:40],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", AGENTS),
        ("POST", f"{AGENTS}/one/heartbeat"),
        ("POST", LEASES),
        ("GET", "/api/v1/events/stream"),
        ("GET", "/dialects/openintent/api/v1/agents"),
    ],
)
def test_every_operation_requires_exactly_one_valid_key(
    target: Attacked, method: str, path: str, headers: tuple[bytes, ...]
) -> None:
    answer = target.ask(request(method, path, GOOD.get(path, b""), headers=headers))
    assert_refused(answer, 401, "unknown_key")
    assert "www-authenticate: Bearer" in answer.head


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/one/heartbeat", {"status": "active", "client_timestamp": "2026-02-08T10:30:00Z"}),
        ("GET", "/one", None),
        ("PATCH", "/one", {"name": "mine"}),
        ("PATCH", "/one/status", {"status": "draining"}),
        ("DELETE", "/one", None),
        ("POST", "", {"agent_id": "one", "supersede": True}),
        ("POST", "", {"agent_id": "three"}),
        ("POST", "/one/commands", {"command": "drain"}),
    ],
)
def test_agent_key_cannot_change_another_agent(
    target: Attacked, method: str, path: str, body: object
) -> None:
    content = b"" if body is None else json.dumps(body).encode()
    answer = target.ask(
        request(method, AGENTS + path, content, key=target.keys["two"], headers=(b"If-Match: *",))
    )
    assert_refused(answer, 403, "not_allowed")


# ── bodies ──

NOT_JSON = [
    b"{",
    b"\xff\xfe{}",
    b"\xef\xbb\xbf{}",
    b'{"agent_id": "\xed\xa0\x80"}',
    b'{"agent_id": "\\ud800"}',
    b'{"metadata": {"x": NaN}}',
    b'{"metadata": {"x": -Infinity}}',
    b"{}{}",
    b"{'a': 1}",
    b'{"a": 1,}',
    b"[" * 30_000,
    b'{"metadata":' * 5_000 + b"1" + b"}" * 5_000,
    b'{"metadata": {"x": 0x10}}',
    b'{"metadata": {"x": 01}}',
    b"\x00",
    b"status=active",
]


@pytest.mark.parametrize("body", NOT_JSON, ids=lambda body: str(body[:24]))
@pytest.mark.parametrize("path", [AGENTS, f"{AGENTS}/one/heartbeat", LEASES])
def test_invalid_json_is_reported(target: Attacked, path: str, body: bytes) -> None:
    answer = target.post(path, body)
    if len(body) > 4_096 and path == LEASES:
        assert_refused(answer, 413, "body_too_large")
        return
    if answer.status == 422:
        # Where no free content is read, NaN is just an unknown member.
        assert b"metadata" in body
        assert path != AGENTS
        return
    assert_refused(answer, 400, "not_json")


INVALID = [
    (AGENTS, b'{"metadata": {"x": 1e400}}'),
    (AGENTS, b'{"capacity": {"max_concurrent_tasks": 1e400}}'),
    (AGENTS, b'{"capacity": {"max_concurrent_tasks": -1}}'),
    (AGENTS, b'{"capacity": {"max_concurrent_tasks": %s}}' % (b"9" * 4_000)),
    (AGENTS, b'{"drain_timeout_seconds": -5}'),
    (AGENTS, b'{"drain_timeout_seconds": "60"}'),
    (AGENTS, b'{"drain_timeout_seconds": true}'),
    (AGENTS, b'{"heartbeat_config": {"interval_seconds": 0}}'),
    (AGENTS, b'{"heartbeat_config": {"interval_seconds": 1e308}}'),
    (AGENTS, b'{"supersede": "yes"}'),
    (AGENTS, b'{"agent_id": "a\\r\\nX-Injected: 1"}'),
    (AGENTS, b'{"agent_id": "../../etc/passwd"}'),
    (AGENTS, b'{"agent_id": ""}'),
    (AGENTS, b'{"agent_id": "key:key_admin"}'),
    (AGENTS, b'{"name": "a\\u0000b"}'),
    (AGENTS, b'{"name": "a\\u2028b"}'),
    (AGENTS, b'{"endpoint": "javascript:alert(1)"}'),
    (AGENTS, b'{"endpoint": "http://a\\r\\nHost: b"}'),
    (AGENTS, b'{"metadata": ' + b'{"a":' * 30 + b"1" + b"}" * 30 + b"}"),
    (AGENTS, b'{"metadata": {"a": "' + b"x" * 20_000 + b'"}}'),
    (AGENTS, b'{"agent_key": "ahk_x"}'),
    (AGENTS, b'{"__proto__": {}}'),
    (AGENTS, b"[]"),
    (AGENTS, b"null"),
    (AGENTS, b'"text"'),
    (LEASES, b'{"resource": "r", "ttl_seconds": -1}'),
    (LEASES, b'{"resource": "r", "ttl_seconds": 1e999}'),
    (LEASES, b'{"resource": "r", "ttl_seconds": NaN}'),
    (LEASES, b'{"resource": "intent:a/"}'),
    (LEASES, b'{"resource": "a b"}'),
    (LEASES, b'{"resource": "\\u0000"}'),
    (f"{AGENTS}/one/heartbeat", b'{"status": "dead", "client_timestamp": "2026-02-08T10:30:00Z"}'),
    (f"{AGENTS}/one/heartbeat", b'{"status": "active", "client_timestamp": "yesterday"}'),
    (f"{AGENTS}/one/heartbeat", b'{"status": "active", "client_timestamp": "2026-02-08T10:30:00"}'),
    (f"{AGENTS}/one/heartbeat", b'{"status": "active", "client_timestamp": 1e300}'),
    (f"{AGENTS}/one/commands", b'{"command": "drain", "expires_in_seconds": -1}'),
    ("/api/v1/keys", b'{"role": "root", "name": "x"}'),
    ("/api/v1/keys", b'{"role": "agent", "name": "x"}'),
    ("/api/v1/keys", b'{"role": "reader", "name": "x", "expires_in_seconds": "NaN"}'),
]


@pytest.mark.parametrize(("path", "body"), INVALID, ids=lambda part: str(part[:50]))
def test_invalid_members_are_reported_with_their_place(target: Attacked, path: str, body: bytes) -> None:
    answer = target.post(path, body)
    if b"e400" in body:
        # It would be stored as something else.
        assert_refused(answer, 400, "not_json")
        return
    assert_refused(answer, 422, "invalid_request")
    (fault, *_) = answer.json()["error"]["details"]["faults"]
    assert fault["message"]
    assert "x" * 1_000 not in answer.body.decode()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (AGENTS, b'{"agent_id": "three", "agent_id": "one"}'),
        (LEASES, b'{"resource": "r", "resource": "intent:a/"}'),
    ],
)
def test_body_with_a_repeated_name_is_refused(target: Attacked, path: str, body: bytes) -> None:
    answer = target.post(path, body)
    assert_refused(answer, 422, "invalid_request")
    (fault,) = answer.json()["error"]["details"]["faults"]
    assert fault["name"] == "repeated"


@pytest.mark.parametrize("path", [AGENTS, f"{AGENTS}/one/heartbeat", LEASES])
def test_oversized_body_is_refused_without_reading(target: Attacked, path: str) -> None:
    head = request("POST", path, key=ADMIN_KEY, headers=(b"Content-Length: 99999999999",))
    assert_refused(target.ask(head), 413, "body_too_large")
    chunked = request("POST", path, key=ADMIN_KEY, headers=(b"Transfer-Encoding: chunked",))
    chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    assert_refused(target.ask(chunked, *[chunk] * 5), 413, "body_too_large")


@pytest.mark.parametrize("path", [AGENTS, f"{AGENTS}/one/heartbeat", LEASES])
def test_endless_body_times_out(target: Attacked, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_timeout, "MAX_BODY_SECONDS", 0.3)
    monkeypatch.setattr(body_timeout, "CHECK_SECONDS", 0.1)
    head = request("POST", path, key=ADMIN_KEY, headers=(b"Content-Length: 100",))
    assert_refused(target.ask(head, b"{"), 408, "body_too_slow")
    head = request("POST", path, key=ADMIN_KEY, headers=(b"Transfer-Encoding: chunked",))
    assert_refused(target.ask(head, b"1\r\n{\r\n"), 408, "body_too_slow")


@pytest.mark.parametrize(
    "headers",
    [
        (b"Content-Encoding: gzip",),
        (b"Content-Encoding: identity, br",),
        (b"Content-Type: text/plain",),
        (b"Content-Type: application/x-www-form-urlencoded",),
        (b"Content-Type: application/jsonp",),
        (b"Content-Type: application/json", b"Content-Type: text/html"),
    ],
)
@pytest.mark.parametrize("path", [AGENTS, f"{AGENTS}/one/heartbeat", LEASES])
def test_body_with_another_type_or_encoding_is_refused_without_reading(
    target: Attacked, path: str, headers: tuple[bytes, ...]
) -> None:
    body = gzip.compress(b"0" * 10_000_000)
    answer = target.ask(request("POST", path, body, key=ADMIN_KEY, headers=headers, content_type=None))
    assert_refused(answer, 415, "not_plain_json")


# ── paths, methods, headers ──


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/agents/",
        "//api/v1/agents",
        "/api//v1/agents",
        "/api/v1/agents/..",
        "/api/v1/agents/%2e%2e/keys",
        "/api/v1/agents/../keys",
        "/api/v1/agents/one%2fheartbeat",
        "/api/v1/agents/%00",
        "/api/v1/agents/one%00",
        "/api/v1/agents/one%0d%0aX-Injected:%201",
        "/api/v1/agents/%ff%fe",
        "/api/v1/agents/%ed%a0%80",
        "/api/v1/agents/%F0%9F%92%A9",
        "/api/v1/agents/one;x=1",
        "/api/v1/agents/ONE",
        "/api/v1/agents/one%20",
        "/api/v1/agents/" + "a" * 5_000,
        "/api/v1/agents/" + "%2e%2e%2f" * 200,
        "/api/v1/leases/%00",
        "/api/v1/keys/%00",
        "/API/V1/AGENTS",
        "/.git/config",
        "/api/v1/agents/one/heartbeat/..%2f..%2fkeys",
        "/static/../../../etc/passwd",
    ],
)
def test_unknown_path_with_hostile_characters_is_404(target: Attacked, path: str) -> None:
    answer = target.ask(request("GET", path, key=ADMIN_KEY))
    if answer.status == 405:
        # The path exists for another method; the answer reveals no more than that.
        assert_refused(answer, 405, "method_not_allowed")
        return
    assert answer.status == 404, (answer.head, answer.body)
    assert_refused(answer, 404, answer.code)
    assert "X-Injected" not in answer.head


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/agents/%00/heartbeat",
        "/api/v1/agents/a%0d%0ab/heartbeat",
        "/api/v1/agents//heartbeat",
        "/api/v1/agents/one/two/heartbeat",
        "/api/v1/agents/" + "a" * 129 + "/heartbeat",
    ],
)
def test_heartbeat_for_an_impossible_name_is_refused(target: Attacked, path: str) -> None:
    answer = target.post(path, HEARTBEAT)
    assert answer.status == 404
    assert_refused(answer, 404, answer.code)


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=1e3",
        "limit=%00",
        "limit=10&limit=20",
        "cursor=%00",
        "cursor=" + "A" * 512,
        "cursor=" + "W1tbW1tb" * 64,
        "cursor=OTk5OTk5",
        "status=%00",
        "status=",
        "role_id=%00",
        "capabilities=%00",
        "capabilities=" + ",".join(map(str, range(65))),
        "min_available_capacity=-1",
        "sort=name;DROP TABLE agents",
        "nonsense=1",
        "%00=1",
        "&".join(f"a{number}=1" for number in range(3_000)),
        "limit=10&" + "&".join("limit=1" for _ in range(3_000)),
    ],
    ids=lambda query: query[:30],
)
def test_invalid_query_is_reported(target: Attacked, query: str) -> None:
    answer = target.ask(request("GET", f"{AGENTS}?{query.replace(' ', '%20')}", key=ADMIN_KEY))
    assert_refused(answer, 422, "invalid_request")
    assert len(answer.json()["error"]["details"]["faults"]) <= execution.MAX_FAULTS


@pytest.mark.parametrize("name", ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"])
def test_no_header_changes_the_method(target: Attacked, name: str) -> None:
    answer = target.ask(request("GET", f"{AGENTS}/one", key=ADMIN_KEY, headers=(f"{name}: DELETE".encode(),)))
    assert answer.status == 200
    answer = target.ask(request("GET", f"{AGENTS}/one?_method=DELETE", key=ADMIN_KEY))
    assert answer.status == 200


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "OPTIONS", "PROPFIND", "get", "A" * 500])
def test_other_methods_are_refused_and_reflect_nothing(target: Attacked, method: str) -> None:
    answer = target.ask(request(method, AGENTS, key=ADMIN_KEY, headers=(b"X-Secret: s3cret",)))
    assert answer.status in {400, 405}
    assert b"s3cret" not in answer.body
    if answer.status == 405:
        assert_refused(answer, 405, "method_not_allowed")
        assert "allow: GET, HEAD, POST" in answer.head


@pytest.mark.parametrize(
    "header",
    [
        b"If-Match: " + b"x" * 50_000,
        b"If-Match: " + b",".join(b'"%d"' % number for number in range(2, 5_000)),
        b"If-Match: \xff\xfe",
        b'If-Match: W/"1"',
        b"If-Match: 1",
    ],
    ids=lambda header: str(header[:24]),
)
def test_invalid_if_match_version_is_stale(target: Attacked, header: bytes) -> None:
    answer = target.ask(request("DELETE", f"{AGENTS}/one", key=ADMIN_KEY, headers=(header,)))
    assert_refused(answer, 412, "stale_version")


@pytest.mark.parametrize("value", [b"-1", b"1e3", b"\xb2", b"9" * 5_000, b"", b"1, 1", b"0x1"])
def test_invalid_incarnation_header_is_refused(target: Attacked, value: bytes) -> None:
    answer = target.post(f"{AGENTS}/one/heartbeat", HEARTBEAT, b"X-Agent-Incarnation: " + value)
    assert_refused(answer, 422, "invalid_request")
    answer = target.post(LEASES, b'{"resource": "r"}', b"X-Agent-Incarnation: " + value)
    assert_refused(answer, 422, "invalid_request")


@pytest.mark.parametrize("value", [b"-1", b"1e3", b"\xb2", b"9" * 5_000, b"", b"1, 1"])
def test_invalid_fencing_token_is_refused(target: Attacked, value: bytes) -> None:
    headers = (b"X-Fencing-Token: " + value,)
    answer = target.ask(request("PUT", "/api/v1/intents/i/state/s", b"{}", key=ADMIN_KEY, headers=headers))
    assert_refused(answer, 422, "invalid_request")


@pytest.mark.parametrize("value", [b"-1", b"1e3", b"\xb2", b"9" * 5_000, b"", b"99999"])
def test_invalid_last_event_id_is_refused(target: Attacked, value: bytes) -> None:
    headers = (b"Last-Event-ID: " + value,)
    answer = target.ask(request("GET", "/api/v1/events/stream", key=ADMIN_KEY, headers=headers))
    assert_refused(answer, 422, "invalid_request")


# ── HTTP protocol errors ──

KEY_LINE = b"X-API-Key: " + ADMIN_KEY.encode() + b"\r\n"
SMUGGLED = (
    b'POST /api/v1/agents HTTP/1.1\r\nHost: x\r\n%sContent-Length: 21\r\n\r\n{"agent_id":"evil-1"}' % KEY_LINE
)
FRONT = b"POST /api/v1/agents/one/heartbeat HTTP/1.1\r\nHost: x\r\n" + KEY_LINE


@pytest.mark.parametrize(
    "raw",
    [
        FRONT + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        FRONT + b"Transfer-Encoding: chunked\r\nContent-Length: 200\r\n\r\n0\r\n\r\n" + SMUGGLED,
        FRONT + b"Content-Length: 0\r\nContent-Length: 200\r\n\r\n" + SMUGGLED,
        FRONT + b"Content-Length: 0, 200\r\n\r\n" + SMUGGLED,
        FRONT + b"Content-Length: +0\r\n\r\n" + SMUGGLED,
        FRONT + b"Content-Length: -1\r\n\r\n" + SMUGGLED,
        FRONT + b"Content-Length : 0\r\n\r\n" + SMUGGLED,
        FRONT + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        FRONT + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
        FRONT + b"Transfer-Encoding: chunked\r\n\r\n0;" + b"x" * 100 + b"\n\n" + SMUGGLED,
        FRONT + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + SMUGGLED,
        FRONT + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + SMUGGLED,
        FRONT + b" Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n" + SMUGGLED,
        FRONT + b"X: a\rContent-Length: 0\r\n\r\n" + SMUGGLED,
        FRONT + b"X: a\x00b\r\n\r\n" + SMUGGLED,
        b"GET /api/v1/agents HTTP/1.1\nHost: x\n\n" + SMUGGLED,
        b"GET /api/v1/agents HTTP/9.9\r\nHost: x\r\n\r\n" + SMUGGLED,
        b"GET /api/v1/agents\r\n\r\n" + SMUGGLED,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00" * 1_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=lambda raw: str(raw[len(FRONT) : len(FRONT) + 40] if raw.startswith(FRONT) else raw[:30]),
)
def test_ambiguous_body_length_smuggles_no_second_request(attacked: Attacked, raw: bytes) -> None:
    answer = attacked.ask(raw, seconds=0.5)
    assert answer.status in {0, 400, 401, 408, 422, 426, 501, 505}, answer.head
    assert b"evil-1" not in answer.body + answer.rest
    shown = attacked.ask(request("GET", f"{AGENTS}/evil-1", key=ADMIN_KEY))
    assert shown.status == 404


def test_many_and_long_headers_are_refused(target: Attacked) -> None:
    many = tuple(b"X-%d: %d" % (number, number) for number in range(10_000))
    for headers in (many, (b"X-Long: " + b"x" * 1_000_000,), (b"X: 1",) * 10_000):
        answer = target.ask(request("GET", f"{AGENTS}/one", key=ADMIN_KEY, headers=headers))
        assert answer.status in {200, 400, 431}
    assert target.ask(request("GET", f"{AGENTS}/one?" + "x" * 100_000, key=ADMIN_KEY)).status in {
        200, 400, 414,
    }  # fmt: skip


def test_foreign_host_header_has_no_effect(target: Attacked) -> None:
    raw = request("GET", f"{AGENTS}/", key=ADMIN_KEY).replace(b"registry.test", b"evil.example")
    answer = target.ask(raw)
    assert_refused(answer, 404, "not_found")
    assert "evil.example" not in answer.head


def test_text_of_an_agent_is_escaped_and_in_no_header(attacked: Attacked) -> None:
    name = "</script><img src=x onerror=alert(1)> %s {0} ${x} '; DROP TABLE agents; --"
    body = {"agent_id": "poet", "name": name, "metadata": {"\u0000": "\u0000", "big": 10**300}}
    answer = attacked.post(AGENTS, json.dumps(body).encode())
    attacked.accept_changes()
    assert answer.status == 201, answer.body
    shown = attacked.ask(request("GET", f"{AGENTS}/poet", key=ADMIN_KEY))
    assert shown.json()["name"] == name
    assert shown.json()["metadata"] == body["metadata"]
    assert "content-type: application/json" in shown.head
