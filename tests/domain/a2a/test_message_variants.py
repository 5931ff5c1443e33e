import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cards import DATA

from lifesign.domain.a2a.message_variants import (
    REST_0_3,
    REST_0_3_AS_RPC,
    REST_1_0,
    RPC_0_1,
    RPC_0_3,
    RPC_1_0,
    place_of,
    variants_of,
    written,
)

BINDINGS = (
    st.sampled_from(["JSONRPC", "HTTP+JSON", "WEBSOCKET", "GRPC", ""]) | st.text(max_size=5) | st.none()
)
VERSIONS = st.sampled_from(["0.1", "0.2.5", "0.3.0", "1.0", "1.0.1", "2.7"]) | st.text(max_size=5) | st.none()


def names(binding: str | None, version: str | None) -> list[str]:
    return [spelling.name for spelling in variants_of(binding, version)]


# ── order of the variants ──


@pytest.mark.parametrize(
    ("version", "first"),
    [
        ("1.0", "SendMessage"),
        ("1.0.1", "SendMessage"),
        ("2.0", "SendMessage"),
        ("0.3.0", "message/send"),
        ("0.2.5", "message/send"),
        ("0.1", "tasks/send"),
        (None, "message/send"),
        ("newest", "message/send"),
        ("", "message/send"),
    ],
)
def test_three_method_names_are_tried_beginning_with_that_of_the_cards_version(
    version: str | None, first: str
) -> None:
    found = names("JSONRPC", version)
    assert found[0] == first
    assert sorted(found) == ["SendMessage", "message/send", "tasks/send"]


def test_rest_paths_of_the_cards_version_are_tried_first() -> None:
    assert variants_of("HTTP+JSON", "1.0") == (REST_1_0, REST_0_3, REST_0_3_AS_RPC)
    assert variants_of("HTTP+JSON", "0.3.0") == (REST_0_3, REST_0_3_AS_RPC, REST_1_0)
    assert variants_of("HTTP+JSON", None)[0] is REST_0_3


@given(BINDINGS, VERSIONS)
def test_any_card_gives_three_message_variants(binding: str | None, version: str | None) -> None:
    found = variants_of(binding, version)
    assert len(set(map(id, found))) == 3
    assert {spelling.is_rpc for spelling in found} == {binding != "HTTP+JSON"}


# ── spelling ──


def captured(case: str) -> tuple[str, dict[str, str], Any]:
    """Return path, header fields and body of a request that a real agent took."""
    path = DATA / "captures" / f"{case}.request.http"
    if not path.exists():
        pytest.skip(f"NOT COMPARED with real requests: {path} is absent")
    head, _, body = Path(path).read_bytes().partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    fields = (line.partition(": ") for line in lines)
    return first.split()[1], {name: value for name, _, value in fields}, json.loads(body)


@pytest.mark.parametrize("case", ["10-rpc1-send-ok", "50-rpc03-send-ok", "a2a-sdk-0.3.26/10-rpc03-send-ok"])
def test_json_rpc_request_equals_the_request_that_real_agents_accepted(case: str) -> None:
    spelling = RPC_1_0 if "rpc1" in case else RPC_0_3
    _, fields, body = captured(case)
    call = json.loads(written(spelling, "ok hello", "m-1"))
    assert call["params"].pop("configuration")["historyLength"] == 0
    assert call == body | {"id": "m-1"}
    assert fields.get("A2A-Version") == spelling.headers.get("A2A-Version")


@pytest.mark.parametrize(
    "case", ["60-rest1-send-ok", "70-rest03-send-ok", "a2a-sdk-0.3.26/60-rest03-send-ok"]
)
def test_rest_request_equals_the_request_that_real_agents_accepted(case: str) -> None:
    spelling = REST_1_0 if "rest1" in case else REST_0_3
    path, fields, body = captured(case)
    # In the protocol buffers the member is called `request`, in JSON `message`; agents take both names.
    sent = json.loads(written(spelling, "ok hello", "m-1"))
    assert sent.pop("configuration") == {"historyLength": 0}
    assert list(sent.values()) == list(body.values())
    assert place_of(spelling, "http://agent.example/rest").endswith(path)
    assert fields.get("A2A-Version") == spelling.headers.get("A2A-Version")


def test_version_0_1_call_contains_the_task_id() -> None:
    call = json.loads(written(RPC_0_1, "hi", "m-1"))
    assert (call["method"], call["params"]["id"]) == ("tasks/send", "m-1")
    assert call["params"]["message"] == {"role": "user", "parts": [{"type": "text", "text": "hi"}]}
    assert call["params"]["historyLength"] == 0


@given(st.text(max_size=50))
def test_each_variant_sends_the_text_unchanged(text: str) -> None:
    parts = [
        json.loads(written(RPC_1_0, text, "m"))["params"]["message"]["parts"],
        json.loads(written(RPC_0_3, text, "m"))["params"]["message"]["parts"],
        json.loads(written(RPC_0_1, text, "m"))["params"]["message"]["parts"],
        json.loads(written(REST_0_3, text, "m"))["message"]["content"],
    ]
    assert {part["text"] for [part] in parts} == {text}


# ── endpoint ──


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://a.example/rest", "https://a.example/rest/v1/message:send"),
        ("https://a.example/rest/", "https://a.example/rest/v1/message:send"),
        ("https://a.example", "https://a.example/v1/message:send"),
        ("https://a.example/v1", "https://a.example/v1/message:send"),
        ("https://a.example/v1/", "https://a.example/v1/message:send"),
        ("https://a.example/rest?key=1", "https://a.example/rest/v1/message:send?key=1"),
    ],
)
def test_rest_base_url_may_end_with_or_without_the_version(url: str, expected: str) -> None:
    assert place_of(REST_0_3, url) == expected


def test_json_rpc_call_is_sent_to_the_url_of_the_interface() -> None:
    assert place_of(RPC_0_3, "https://a.example/rpc?x=1") == "https://a.example/rpc?x=1"


def test_tenant_is_sent_only_by_the_variants_of_1_0() -> None:
    assert json.loads(written(RPC_1_0, "hi", "m", "t 1"))["params"]["tenant"] == "t 1"
    assert "tenant" not in json.loads(written(RPC_0_3, "hi", "m", "t 1"))["params"]
    assert "tenant" not in json.loads(written(REST_1_0, "hi", "m", "t 1"))
    assert place_of(REST_1_0, "https://a.example/r", "t/1") == "https://a.example/r/t%2F1/message:send"
    assert place_of(REST_0_3, "https://a.example/r", "t1") == "https://a.example/r/v1/message:send"
