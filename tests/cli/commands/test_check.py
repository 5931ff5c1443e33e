import asyncio
import json
import re
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.support.agent_check import card, document
from tests.support.hostile_server import (
    CARD_PATH,
    HEALTH_PATH,
    HostileServer,
    Reply,
    answer,
    as_json,
    redirect,
    serving,
)
from tests.support.mcp_answers import handshaking, methods, stateless
from tests.support.message_server import Got, Says
from tests.support.message_server import agent as message_agent

from lifesign.cli import main
from lifesign.cli.commands.check import EXIT_CODES, TOKEN_VARIABLE
from lifesign.domain.credentials.secret import REMOVED
from lifesign.domain.health.document import HealthStatus

EVIL = "Evil\x1b[2J\u202e\r\nagent"


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


async def run(replies: dict[str, Reply], *options: str) -> tuple[int, HostileServer]:
    async with serving(replies) as server:
        # The command opens a loop of its own.
        return await asyncio.to_thread(main, ["check", server.url, *options]), server


def full(status: str = "degraded", **members: Any) -> dict[str, Any]:
    health = {"status": status, "uptime_seconds": 90_000, "last_healthy_at": "2026-07-01T12:00:00Z"}
    calibration = {
        "response_ratio": 0.9,
        "error_ratio": 0.1,
        "latency_p50_ms": 12.5,
        "latency_p99_ms": 1200,
        "measurement_window_seconds": 86400,
        "sample_count": 1000,
    }
    decay = {"calibration_trend": "declining", "days_since_model_change": None}
    return document(health=health, calibration=calibration, decay=decay, **members)


def test_every_status_has_an_exit_code() -> None:
    assert EXIT_CODES.keys() == set(HealthStatus)


async def test_login_of_a_refused_document_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    replies = {CARD_PATH: as_json(card()), HEALTH_PATH: answer(401, WWW_Authenticate="Bearer")}
    await run(replies)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["login"]]
    assert "bearer" in line
    await run(replies, "--json")
    assert json.loads(capsys.readouterr().out)["login"]["schemes"] == ["bearer"]


@pytest.mark.parametrize(
    ("status", "code"), [("healthy", 0), ("degraded", 1), ("unhealthy", 2), ("unknown", 3)]
)
async def test_exit_codes_are_those_of_a_monitoring_plugin(
    status: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, _ = await run({HEALTH_PATH: as_json(document(status))})
    assert ended == code
    assert status in capsys.readouterr().out


async def test_unreadable_document_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    ended, _ = await run({HEALTH_PATH: answer(500)})
    assert ended == 3
    shown = capsys.readouterr().out
    assert re.search(r"^status +unknown: ", shown, re.MULTILINE)
    assert "HTTP 500" in shown
    assert "trusted" not in shown


async def test_check_page_shows_status_ratios_latencies_and_findings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await run({CARD_PATH: as_json(card(provider={"organization": "Example"})), HEALTH_PATH: as_json(full())})
    shown = capsys.readouterr().out
    for expected in (
        "agent       An agent", "degraded: ", "worsening", "0.9 answered, 0.1 failed",
        "1000 within 1 d", "p50 12.5 ms, p99 1200 ms", "declining", "1 d 1 h", "2026-07-01T12:00:00",
        "not_https", "by Example", "A2A 0.3", "does not prove",
    ):  # fmt: skip
        assert expected in shown


async def test_id_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    result = full(agent_id="urn:example:one")
    await run({HEALTH_PATH: as_json(result)})
    shown = capsys.readouterr().out
    assert shown.startswith("agent       urn:example:one\n")
    assert shown.count("urn:example:one") == 1
    await run({CARD_PATH: as_json(card()), HEALTH_PATH: as_json(result)})
    assert "\nid          urn:example:one\n" in capsys.readouterr().out


async def test_control_characters_from_the_checked_agent_are_replaced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    evil = full(agent_id=EVIL, extensions={f"com.example.{EVIL}": 1})
    replies = {CARD_PATH: as_json(card(name=EVIL, version=EVIL)), HEALTH_PATH: as_json(evil)}
    for options in ([], ["--json"]):
        await run(replies, *options)
        shown = capsys.readouterr().out
        assert all(line.isprintable() for line in shown.split("\n"))


def sampled(count: int, **members: Any) -> dict[str, Any]:
    calibration = {"measurement_window_seconds": 86400, "sample_count": count}
    return document("unknown", calibration=calibration, **members)


@pytest.mark.parametrize(
    ("count", "age_s", "caching", "hint"),
    [
        (0, 12, "max-age=48", "s old"),
        (0, -0.6, "max-age=60", "0 s old"),
        (0, -5, "max-age=60", None),
        (9, 12, "max-age=48", "check again in 49 s"),
        (10, 12, "max-age=48", None),
        (0, 60, "max-age=0", None),
        (0, 12, "no-cache", None),
    ],
)
async def test_document_without_samples_of_a_new_agent_has_a_hint(
    count: int, age_s: float, caching: str, hint: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new agent shows 0 samples until the next refresh of its document."""
    made_at = (datetime.now(UTC) - timedelta(seconds=age_s)).isoformat()
    reply = as_json(sampled(count, timestamp=made_at), Cache_Control=caching)
    ended, _ = await run({HEALTH_PATH: reply})
    shown = capsys.readouterr().out
    assert ended == 3
    assert ("\nhint " in shown) == (hint is not None)
    assert hint is None or hint in " ".join(shown.split())


def test_agent_that_refuses_the_connection_has_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "http://127.0.0.1:1"]) == 3
    (hint,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("hint ")]
    assert {"host", "port"} <= set(hint.split())


async def test_compressed_answers_have_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    key = "io.github.lifesign.inspection"
    value: dict[str, Any] = {
        "rule": "mostly_not_inspected",
        "inspected": 0,
        "not_inspected": {"oversized": 5},
    }
    await run({HEALTH_PATH: as_json(sampled(20, extensions={key: value}))})
    shown = capsys.readouterr().out
    assert "\nhint " not in shown
    assert re.search(r"\b5 of 5 .*: 5 oversized", shown)
    assert "ratios      left out" in shown
    value["not_inspected"]["compressed"] = 7
    await run({HEALTH_PATH: as_json(sampled(20, extensions={key: value}))})
    shown = capsys.readouterr().out
    assert "\nhint " in shown
    assert "7 answers reached AgentHealthMiddleware compressed" in " ".join(shown.split())


async def test_json_has_the_keys_that_help_describes(capsys: pytest.CaptureFixture[str]) -> None:
    replies = {CARD_PATH: as_json(card()), HEALTH_PATH: as_json(full("unhealthy"))}
    ended, server = await run(replies, "--json")
    shown = json.loads(capsys.readouterr().out)
    assert ended == 2
    expected = ["url", "status", "decision", "card", "health", "server", "login", "document", "findings"]
    assert list(shown) == expected
    assert (shown["url"], shown["status"]) == (server.url, "unhealthy")
    assert shown["decision"]["action"] == "avoid"
    assert shown["decision"]["retry_after_seconds"] == 300
    assert shown["card"]["name"] == "An agent"
    assert shown["health"]["result"] == "ok"
    assert shown["document"]["decay"] == {"calibration_trend": "declining", "days_since_model_change": None}
    assert [finding["name"] for finding in shown["findings"]][-1] == "not_https"


async def test_json_has_the_same_keys_if_nothing_could_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    await run({HEALTH_PATH: as_json(full())}, "--json")
    known = json.loads(capsys.readouterr().out)
    await run({}, "--json")
    unknown = json.loads(capsys.readouterr().out)
    assert known.keys() == unknown.keys()
    assert known["card"].keys() == unknown["card"].keys()
    assert known["health"].keys() == unknown["health"].keys()
    assert unknown["document"] is None


async def checked_server(
    answers: Callable[[Got], Says], *options: str, path: str = "/mcp"
) -> tuple[int, list[str]]:
    async with message_agent(answers, {}) as server:
        server.card = {}
        server.others = lambda _: Says(status=404)
        code = await asyncio.to_thread(main, ["check", f"{server.url}{path}", *options])
    return code, methods(server)


@pytest.mark.parametrize(
    ("answers", "generation", "version"),
    [(stateless, "stateless", "2026-07-28"), (handshaking, "handshake", "2025-06-18")],
)
@pytest.mark.parametrize("options", [(), ("--kind", "mcp")])
async def test_server_without_a_document_is_unknown_and_shown_with_its_generation(
    answers: Callable[[Got], Says],
    generation: str,
    version: str,
    options: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _ = await checked_server(answers, *options)
    assert code == EXIT_CODES["unknown"]
    shown = capsys.readouterr().out
    [line] = [line for line in shown.splitlines() if line.startswith("MCP ")]
    assert line.split()[1:3] == [f"{version},", generation + ("," if answers is handshaking else "")]
    assert re.search(r"^endpoint .*/mcp \(ok in \d+ ms\)$", shown, re.MULTILINE)
    await checked_server(answers, *options, "--json")
    server = json.loads(capsys.readouterr().out)["server"]
    latency_ms = server.pop("latency_ms")
    assert latency_ms > 0
    assert server == {
        "is_mcp": True,
        "result": "ok",
        "reason": None,
        "generation": generation,
        "version": version,
        "name": "old" if answers is handshaking else None,
    }


async def test_url_of_kind_a2a_gets_no_post(capsys: pytest.CaptureFixture[str]) -> None:
    code, requested = await checked_server(stateless, "--kind", "a2a", "--json")
    assert code == EXIT_CODES["unknown"]
    assert json.loads(capsys.readouterr().out)["server"] is None
    assert set(requested) == {"GET"}


@pytest.mark.parametrize(
    ("challenge", "is_server"), [('Bearer resource_metadata="https://a.example/x"', True), ("Bearer", False)]
)
async def test_server_that_refuses_only_posts_is_identified_or_has_a_hint(
    challenge: str, *, is_server: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = Says(status=401, headers=f"WWW-Authenticate: {challenge}\r\n")
    code, _ = await checked_server(lambda _: refusal)
    assert code == EXIT_CODES["unknown"]
    shown = capsys.readouterr().out
    assert bool(re.search("^endpoint .*gated", shown, re.MULTILINE)) is is_server
    assert ("add --kind mcp" in hint_in(shown)) is not is_server
    await checked_server(lambda _: refusal, "--kind", "mcp")
    shown = capsys.readouterr().out
    assert re.search("^endpoint .*gated", shown, re.MULTILINE)
    assert re.search("^because .*endpoint requires credentials", shown, re.MULTILINE)
    expected = r"/mcp --kind mcp --credential FILE --allow-network 127.0.0.0/8$"
    assert re.search(rf"lifesign probe http://127.0.0.1:\d+{expected}", hint_in(shown))


def hint_in(shown: str) -> str:
    return " ".join(shown.partition("\nhint ")[2].splitlines()[:1])


@pytest.mark.parametrize(
    ("replies", "because", "hint"),
    [
        ({}, "no health document: HTTP 404", "pass its URL, such as {url}/mcp"),
        ({CARD_PATH: as_json(card())}, "no health document: HTTP 404", "lifesign probe {url}"),
        ({CARD_PATH: answer(401), HEALTH_PATH: answer(401)}, "HTTP 401", "lifesign probe {url} --credential"),
    ],
)
async def test_agent_without_a_readable_document_has_a_hint_with_its_url(
    replies: dict[str, Reply], because: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, server = await run(replies)
    assert code == EXIT_CODES["unknown"]
    shown = capsys.readouterr().out
    assert because in shown.partition("\nbecause ")[2].splitlines()[0]
    assert hint.format(url=server.url) in hint_in(shown)


def test_unknown_kind_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "https://agent.example", "--kind", "ftp"]) == 3
    assert "--kind" in capsys.readouterr().err


async def test_token_is_read_from_a_file_else_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "from-environment")
    _, server = await run({HEALTH_PATH: as_json(full())})
    assert server.asked(HEALTH_PATH)["authorization"] == "Bearer from-environment"
    file = tmp_path / "token"
    file.write_text("from-file\n")
    _, server = await run({HEALTH_PATH: as_json(full())}, "--token-file", str(file))
    assert server.asked(HEALTH_PATH)["authorization"] == "Bearer from-file"


@pytest.mark.parametrize("options", [[], ["--json"]])
async def test_token_that_the_agent_sends_back_is_not_shown(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    token = "canary/of~detail+7Q=="
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    echoed = b64encode(token.encode()).decode()
    sent_back = full(agent_id=f"agent {token}", extensions={f"x.{token}": [echoed, quote(token)]})
    ended, server = await run({HEALTH_PATH: as_json(sent_back)}, *options)
    assert ended == EXIT_CODES["degraded"]
    assert server.asked(HEALTH_PATH)["authorization"] == f"Bearer {token}"
    written = capsys.readouterr().out
    assert REMOVED in written
    assert not [form for form in (token, echoed, quote(token)) if form in written]


@pytest.mark.parametrize("content", ["", "a-token", "two words", "\u00e4\u00f6", "x" * 8000])
async def test_a_file_without_a_token_is_wrong_usage(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    ended, server = await run({}, "--token-file", str(file))
    assert (ended, server.heads) == (3, [])
    shown = capsys.readouterr().err
    assert "--token-file: expected 8 to 4096 visible" in shown or len(content) > 4096
    assert not content or content not in shown


async def test_redirect_into_a_network_is_followed_if_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(
        {CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document())}, host="127.0.0.2"
    ) as moved:
        replies: dict[str, Reply] = {CARD_PATH: redirect(moved.url + CARD_PATH)}
        refused, _ = await run(replies)
        assert moved.heads == []
        assert "127.0.0.2 is loopback" in (shown := capsys.readouterr().out)
        assert "--allow-network" in shown.split("hint ")[1].split()
        allowed, _ = await run(replies, "--allow-network", "127.0.0.0/8")
    assert (refused, allowed) == (3, 0)


async def test_age_of_a_document_from_the_future_is_shown_as_future(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ahead = (datetime.now(UTC) + timedelta(days=10, hours=1, minutes=30)).isoformat(timespec="milliseconds")
    ended, _ = await run({HEALTH_PATH: as_json(document(timestamp=ahead))})
    assert ended == 3
    assert re.search(r"^age +10 d 1 h in the future$", capsys.readouterr().out, re.MULTILINE)


async def test_document_of_this_second_has_no_negative_age(capsys: pytest.CaptureFixture[str]) -> None:
    ahead = (datetime.now(UTC) + timedelta(seconds=0.5)).isoformat(timespec="milliseconds")
    await run({HEALTH_PATH: as_json(document(timestamp=ahead))}, "--json")
    assert json.loads(capsys.readouterr().out)["health"]["age_seconds"] == 0


async def test_assumed_scheme_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    hint = "https:// was assumed"
    async with serving({HEALTH_PATH: as_json(document())}) as server:
        # TLS to a plain HTTP server times out in the handshake.
        hurry = ["--timeout", "0.5"]
        await asyncio.to_thread(main, ["check", server.url.removeprefix("http://"), *hurry])
        assert hint in capsys.readouterr().out
        await asyncio.to_thread(main, ["check", server.url.replace("http://", "https://"), *hurry])
        assert hint not in capsys.readouterr().out
    await asyncio.to_thread(main, ["check", "http//127.0.0.1:1", *hurry])
    shown = capsys.readouterr().out
    assert "colon is missing" in shown
    assert hint not in shown


async def test_host_without_a_scheme_means_https(capsys: pytest.CaptureFixture[str]) -> None:
    assert await asyncio.to_thread(main, ["check", "127.0.0.1:1", "--json"]) == EXIT_CODES["unknown"]
    assert json.loads(capsys.readouterr().out)["url"] == "https://127.0.0.1:1"


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("", ""), (" ", " "), ("-", "-"), ("/etc/passwd", "/etc/passwd"), ("::1", "::1"), ("a b", "a b"),
        ("http://", "http://"), ("me:hunter2@a.example", "...@a.example"),
        ("http://me:hun/ter2@a.example/", "...@a.example/"),
    ],
)  # fmt: skip
def test_invalid_url_is_shown_without_its_password(
    typed: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--", typed]) == 3
    output = capsys.readouterr().err
    assert output.startswith("lifesign: URL: expected the URL of an agent")
    assert output.endswith(f"; got {shown!r}\n")
    assert "ter2" not in output


async def test_invalid_network_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    ended, server = await run({}, "--allow-network", "nearby")
    assert (ended, server.heads) == (3, [])
    output = capsys.readouterr().err
    assert output.startswith("lifesign: --allow-network: ")
    assert output.endswith("; got 'nearby'\n")


@pytest.mark.parametrize(
    ("arguments", "option"), [(["http://a.example", "--timeout", "nan"], "--timeout"), (["ftp://a"], "URL")]
)
@pytest.mark.parametrize("command", ["check", "validate"])
def test_invalid_value_is_named_by_its_option(
    command: str, arguments: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "validate" and option == "URL":
        arguments = ["http://user@a.example"]
    assert main([command, *arguments]) == 3
    assert capsys.readouterr().err.startswith(f"lifesign: {option}: expected ")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("agent.example:99999", "a port from 1 to 65535"),
        ("agent.example:abc", "a port from 1 to 65535"),
        ("http://[::1]:0", "a port from 1 to 65535"),
        ("2001:db8::1", "an IPv6 address in brackets ([2001:db8::1]:8080)"),
        ("ftp://agent.example", "only http and https"),
        ("https://", "a host name, such as agent.example"),
        ("http://2130706433:19300", "an IPv4 address is written as four decimal numbers"),
        ("exa_mple..com", "a host name does not begin with a dot, and has no two dots in a row"),
        (".agent.example", "a host name does not begin with a dot, and has no two dots in a row"),
        (f"{'a' * 64}.example", "a part of a host name between dots has at most 63 characters"),
        ("a.b" * 90, "a host name has at most 253 characters"),
        (
            "a.-b.example",
            "expected a host name: letters, digits, _ and, not at either end of a part, hyphens",
        ),
        ("256.1.1.1", "an IPv4 address is written as four decimal numbers"),
        ("http://127.0.0.1.:9", "an absolute http(s) URL"),
        ("http://127.1", "an IPv4 address is written as four decimal numbers"),
        ("http://0x7f000001/agent", "an IPv4 address is written as four decimal numbers"),
    ],
)
def test_invalid_address_is_reported_with_its_error(
    url: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", url]) == 3
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == "", "a request was sent"
