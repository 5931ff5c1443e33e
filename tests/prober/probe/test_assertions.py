"""Assertions of one probe, on real servers."""

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.agent_check import card, document
from tests.support.hostile_server import (
    CARD_PATH,
    HEALTH_PATH,
    HostileServer,
    Reply,
    answer,
    as_json,
    raw,
    serving,
)
from tests.support.probing import Played, definition, entry, fetched_as, fetching, probing

from lifesign.domain.observation.assertion import NOT_JSON, TOO_COMPLEX, AssertionOutcome
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import Observation, ResultClass
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.network.request import Request
from lifesign.prober.probe.steps import Prober
from lifesign.prober.registry_exchange.ledger import ProbeReport

AT_S = 1_790_000_000.0
OK, FAILED, NOT_MEASURED = AssertionOutcome
MESSAGE = {"message": {"text": "Reply with the word OK."}}


def agent(server: HostileServer) -> dict[str, Reply]:
    """An agent whose health document has the status healthy."""
    return {CARD_PATH: as_json(card(url=f"{server.url}/a2a")), HEALTH_PATH: as_json(document())}


async def probed(
    server: HostileServer,
    *assertions: dict[str, Any],
    ask: dict[str, Any] | None = None,
    memory: ProbeMemory | None = None,
    **limits: Any,
) -> ProbeReport:
    target = {"url": server.url, "assertions": assertions, "ask": ask}
    wanted = definition(targets=[target], **limits)
    async with fetching(wanted) as fetcher:
        return await Prober(fetcher, wanted).probe(entry(server.url, memory), AT_S)


def outcomes(observation: Observation) -> list[AssertionOutcome]:
    assert observation.assertions is not None
    return [each.result for each in observation.assertions]


def task(state: str, text: str = "OK", task_id: str | None = "1") -> dict[str, Any]:
    artifacts = [{"parts": [{"kind": "text", "text": text}]}]
    result = {"kind": "task", "id": task_id, "status": {"state": state}, "artifacts": artifacts}
    return {"jsonrpc": "2.0", "id": "1", "result": result}


async def test_all_assertions_are_evaluated_with_their_values() -> None:
    async with serving({}) as server:
        server.replies |= agent(server) | {"/status": as_json({"queue": {"depth": 1234}})}
        report = await probed(
            server,
            {"of": "card", "pointer": "/name", "equals": card()["name"]},
            {"of": "health", "pointer": "/health/status", "equals": "unhealthy"},
            {"of": "/status", "pointer": "/queue/depth", "matches": "^[0-9]{1,3}$"},
            {"of": "/status", "status": 200, "latency_below": "60s"},
            {"of": "transport", "status": 405},
        )
    found = report.observation.assertions or ()
    assert [(each.of, each.result, each.actual) for each in found if each.check != "latency_below"] == [
        ("card", OK, card()["name"]),
        ("health", FAILED, "healthy"),
        ("/status", FAILED, "1234"),
        ("/status", OK, "200"),
        ("transport", FAILED, "404"),
    ]
    assert [each.result for each in found if each.check == "latency_below"] == [OK]
    assert list(report.observation.paths or {}) == ["/status"]


async def test_agent_at_the_url_of_a_named_target_gets_nothing_from_behind_its_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAB_TOKEN", "secret-of-lab")
    async with serving({}) as server:
        server.replies |= agent(server) | {"/status": as_json({"key": "public"}), "/login": answer(401)}
        checks = [{"of": path, "pointer": "/key", "equals": "x"} for path in ("/status", "/login")]
        credential = {"name": "lab", "origin": server.url, "bearer": {"env": "LAB_TOKEN"}}
        targets = [{"url": server.url, "assertions": checks}]
        credentials = [credential | {"for_all_targets": False}]
        async with probing(targets=targets, credentials=credentials) as probes:
            observation = await probes.see(server.url, subject_id="spy")
        assert "secret-of-lab" not in "".join(server.heads)
    assert observation.agent_id == "spy"
    assert [each.result for each in observation.assertions or ()] == [NOT_MEASURED] * 2


async def test_target_without_assertions_has_no_results() -> None:
    async with serving({}) as server:
        server.replies |= agent(server)
        assert (await probed(server)).observation.assertions is None


@pytest.mark.parametrize(
    ("reply", "results"),
    [
        (as_json(task("completed")), [OK, OK]),
        (as_json(task("completed", "no idea")), [FAILED, OK]),
        (
            as_json({"jsonrpc": "2.0", "error": {"code": -32603, "message": "OK"}}),
            [FAILED, FAILED],
        ),
        (as_json(task("working", task_id=None)), [NOT_MEASURED, NOT_MEASURED]),
        (answer(401), [NOT_MEASURED, NOT_MEASURED]),
        (answer(429), [NOT_MEASURED, NOT_MEASURED]),
        (answer(500), [FAILED, FAILED]),
        (raw(b""), [NOT_MEASURED, NOT_MEASURED]),
    ],
)
async def test_answer_to_a_message_is_read_as_text_and_as_result(
    reply: Reply, results: list[AssertionOutcome]
) -> None:
    async with serving({}) as server:
        server.replies |= agent(server) | {"/a2a": reply}
        report = await probed(
            server,
            {"of": "message", "text_contains": "OK"},
            {"of": "message", "pointer": "/kind", "equals": "task"},
            ask=MESSAGE,
        )
    assert outcomes(report.observation) == results


@pytest.mark.parametrize(
    ("reply", "results"),
    [
        (answer(404), [FAILED, FAILED]),
        (answer(403), [NOT_MEASURED, NOT_MEASURED]),
        (answer(503), [FAILED, FAILED]),
        (as_json({"a": "x" * 5000}), [NOT_MEASURED, OK]),
        (answer(200, b"all is well", Content_Type="text/plain"), [OK, OK]),
        (answer(201, b"all is well"), [OK, FAILED]),
        (answer(202, b"all is well"), [OK, FAILED]),
        (answer(410, b"all is well"), [OK, FAILED]),
        (answer(503, b'{"all": "well"}', Content_Type="application/json"), [OK, FAILED]),
        (answer(503, b"x" * 5000 + b"well"), [NOT_MEASURED, FAILED]),
        (answer(200, b"well", Content_Encoding="compress"), [NOT_MEASURED, OK]),
        (answer(302, b"well", Location="http://other.example/"), [NOT_MEASURED, NOT_MEASURED]),
    ],
)
async def test_path_is_read_within_its_limits(reply: Reply, results: list[AssertionOutcome]) -> None:
    async with serving({}) as server:
        server.replies |= agent(server) | {"/status": reply}
        report = await probed(
            server,
            {"of": "/status", "text_contains": "well"},
            {"of": "/status", "status": 200},
            limits={"max_document_bytes": 1024},
        )
    assert outcomes(report.observation) == results


@pytest.mark.parametrize(("wait_s", "result"), [(0.0, OK), (0.3, FAILED), (60.0, NOT_MEASURED)])
async def test_latency_of_a_path_includes_its_body(wait_s: float, result: AssertionOutcome) -> None:
    async def slow(writer: asyncio.StreamWriter, _head: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(wait_s)
        writer.write(b"OK")

    async with serving({}) as server:
        server.replies |= agent(server) | {"/status": slow}
        timeouts = {"total_seconds": 1.0, "first_byte_seconds": 1.0, "connect_seconds": 1.0}
        report = await probed(server, {"of": "/status", "latency_below": "250ms"}, timeouts=timeouts)
    assert outcomes(report.observation) == [result]


@pytest.mark.parametrize(("version", "result"), [("2.0", FAILED), ("up", OK)])
async def test_only_the_answer_of_a_call_has_a_result(version: str, result: AssertionOutcome) -> None:
    async with serving({}) as server:
        server.replies |= agent(server) | {"/status": as_json({"jsonrpc": version, "queue": 3})}
        report = await probed(server, {"of": "/status", "pointer": "/queue", "equals": 3})
    assert outcomes(report.observation) == [result]


async def test_path_with_an_assertion_may_have_any_type() -> None:
    async with serving({}) as server:
        server.replies |= agent(server) | {"/status": answer(200)}
        await probed(server, {"of": "/status", "status": 200})
        assert server.asked("/status")["accept"] == "*/*"


@pytest.mark.parametrize("check", [{"status": 200}, {"latency_below": "60s"}])
async def test_card_with_an_assertion_is_requested_without_its_etag(check: dict[str, Any]) -> None:
    async with serving({}) as server:
        server.replies |= agent(server) | {
            CARD_PATH: as_json(card(url=f"{server.url}/a2a"), ETag='"1"'),
        }
        first = await probed(server)
        await probed(server, {"of": "card", **check}, memory=first.memory)
        assert first.memory.card_etag == '"1"'
        assert "if-none-match" not in server.asked(CARD_PATH)


@pytest.mark.parametrize("charset", ["iso-8859-1", "utf-16", "utf-8", "unknown"])
async def test_text_is_decoded_by_its_charset(charset: str) -> None:
    body = "café is well".encode("utf-8" if charset == "unknown" else charset)
    async with serving({}) as server:
        reply = answer(200, body, Content_Type=f"text/plain; charset={charset}")
        server.replies |= agent(server) | {"/status": reply}
        report = await probed(server, {"of": "/status", "text_contains": "café is"})
    assert outcomes(report.observation) == [OK]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"id": 12345678901234567890}', (OK, None)),
        (b'{"id": 12345678901234567891}', (FAILED, None)),
        (b'{"id": 12345678901234567890, "v": NaN}', (FAILED, NOT_JSON)),
        (b'{"id": 1}\n{"id": 2}', (FAILED, NOT_JSON)),
        (b"", (FAILED, NOT_JSON)),
        (b'{"id": 1, "v": [' + b"0," * 20_000 + b"0]}", (NOT_MEASURED, TOO_COMPLEX)),
    ],
)
async def test_number_is_compared_exactly_if_the_body_is_json(body: bytes, expected: Any) -> None:
    async with serving({}) as server:
        server.replies |= agent(server) | {"/status": answer(200, body, Content_Type="application/json")}
        report = await probed(server, {"of": "/status", "pointer": "/id", "equals": 12345678901234567890})
    [found] = report.observation.assertions or ()
    assert (found.result, found.reason) == expected


@pytest.mark.parametrize(("charset", "mark"), [("utf-8", "\ufe0f"), ("windows-1256", "\u200c")])
async def test_secret_with_invisible_characters_is_not_in_the_actual_value(
    charset: str, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "canary-0123456789"
    monkeypatch.setenv("ECHO_TOKEN", secret)
    body = mark.join(secret).encode(charset)
    reply = answer(200, body, Content_Type=f"text/plain; charset={charset}")
    async with serving({"/echo": reply}) as server:
        credential = {"name": "lab", "origin": server.url, "bearer": {"env": "ECHO_TOKEN"}}
        target = {"url": server.url, "assertions": [{"of": "/echo", "text_contains": "OK"}]}
        async with probing(targets=[target], credentials=[credential]) as probes:
            (seen,) = (await probes.see(server.url)).assertions or ()
    assert secret not in re.sub("[^ -~]", "", seen.actual or "")


async def test_body_that_is_not_read_fails_no_assertion() -> None:
    async with serving({}) as server:
        server.replies |= agent(server) | {HEALTH_PATH: answer(503, b'{"status": "down"}')}
        report = await probed(
            server,
            {"of": "health", "pointer": "/status", "equals": "down"},
            {"of": "health", "text_contains": "down"},
            {"of": "health", "status": 503},
        )
    assert outcomes(report.observation) == [NOT_MEASURED, NOT_MEASURED, OK]


async def test_assertions_of_an_unreachable_host_are_not_measured() -> None:
    async with serving({}) as server:
        url = server.url
    server = HostileServer({}, port=int(url.rpartition(":")[2]))
    report = await probed(server, {"of": "card", "status": 200}, {"of": "/status", "status": 200})
    assert report.observation.result is ResultClass.REFUSED
    assert outcomes(report.observation) == [NOT_MEASURED, NOT_MEASURED]


async def test_card_with_assertions_is_read_whole_in_each_probe() -> None:
    tagged = as_json(card(name="Another"), ETag='"1"')
    async with serving({}) as server:
        server.replies |= agent(server)
        check = {"of": "card", "pointer": "/name", "equals": card()["name"]}
        first = await probed(server, check)
        again = await probed(server, check, memory=first.memory)
        server.replies[CARD_PATH] = tagged
        changed = await probed(server, check, memory=again.memory)
    assert outcomes(again.observation) == [OK]
    assert "if-none-match" not in server.asked(CARD_PATH)
    assert outcomes(changed.observation) == [FAILED]


@pytest.mark.parametrize(("days", "result"), [(20, OK), (13, FAILED), (-1, FAILED)])
async def test_certificate_assertion_compares_the_remaining_days(days: int, result: AssertionOutcome) -> None:
    ends = datetime.fromtimestamp(AT_S, UTC) + timedelta(days=days, hours=1)

    def health(request: Request) -> Fetched:
        return fetched_as(request, ResultClass.NOT_AN_AGENT, status=404, certificate_expires_at=ends)

    target = {"url": "https://agent.example/", "assertions": [{"of": "health", "certificate_days": 14}]}
    wanted = definition(targets=[target])
    report = await Prober(Played(health=health), wanted).probe(entry("https://agent.example/"), AT_S)
    assert outcomes(report.observation) == [result]


@pytest.mark.parametrize(
    ("rpc", "result"),
    [
        ("http://agent.example/a2a", NOT_MEASURED),
        ("https://other.example/a2a", NOT_MEASURED),
        ("https://agent.example/a2a", FAILED),
    ],
)
async def test_certificate_of_another_origin_is_not_compared(rpc: str, result: AssertionOutcome) -> None:
    ends = datetime.fromtimestamp(AT_S, UTC) + timedelta(days=5)

    def discovery(request: Request) -> Fetched:
        body = json.dumps(card(url=rpc)).encode()
        members = {"status": 200, "content_type": "application/json", "certificate_expires_at": ends}
        return fetched_as(request, ResultClass.OK, body=body, **members)

    def transport(request: Request) -> Fetched:
        return fetched_as(request, ResultClass.HTTP_ERROR, status=405)

    url = "https://agent.example/"
    target = {"url": url, "assertions": [{"of": "transport", "certificate_days": 14}]}
    wanted = definition(targets=[target])
    played = Played(**{"agent-card": discovery, "a2a": transport})
    report = await Prober(played, wanted).probe(entry(url), AT_S)
    assert outcomes(report.observation) == [result]
