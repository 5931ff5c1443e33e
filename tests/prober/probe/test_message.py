from collections.abc import Callable
from typing import Any

import pytest
from tests.support.a2a_messages import event, rpc, rpc_error, task_0x, task_10
from tests.support.agent_check import card
from tests.support.message_server import Agent, Got, Says, agent
from tests.support.probing import SHORT_SECONDS, Bodies, layer, probing, results, see

from lifesign.domain.observation.results import Observation, ResultClass
from lifesign.prober.probe.message import MAX_ANSWER_BYTES

MESSAGE: dict[str, Any] = {
    "ask": {"transport": False, "health": False, "message": {"text": "Are you there?"}}
}
SPELLINGS = ("SendMessage", "message/send", "tasks/send")
CARD_10 = card(supportedInterfaces=[{"protocolBinding": "JSONRPC", "protocolVersion": "1.0"}])
OK, FAILED = ResultClass.OK, ResultClass.HTTP_ERROR


def understanding(*names: str) -> Callable[[Got], Says]:
    """An agent that knows these operations alone, and a version only as a header."""

    def answers(got: Got) -> Says:
        call = got.json
        if call["method"] not in names:
            return Says(rpc_error(-32601))
        if call["method"] == "SendMessage":
            is_new = got.headers.get("a2a-version") == "1.0"
            return Says(rpc(result=task_10("COMPLETED")) if is_new else rpc_error(-32009))
        return Says(rpc(result=task_0x("completed")))

    return answers


async def sent(
    answers: Callable[[Got], Says], members: dict[str, Any] | None = None, path: str = "/rpc", **settings: Any
) -> tuple[Observation, Agent]:
    """Return the result of a probe with a message, and the agent with the received requests."""
    async with agent(answers, members or card(), path) as serving:
        return await see(serving.url, **(MESSAGE | settings)), serving


def names(serving: Agent) -> list[str]:
    return [got.json["method"] for got in serving.posted]


# ── sending the message ──


async def test_by_default_no_message_is_posted() -> None:
    async with agent(understanding(*SPELLINGS), card()) as serving:
        observation = await see(serving.url)
    assert serving.posted == []
    assert observation.message is None
    assert {got.method for got in serving.got} == {"GET"}


@pytest.mark.parametrize("version", ["0.1", "0.2.5", "0.3.0", None])
@pytest.mark.parametrize("known", SPELLINGS)
async def test_each_message_variant_is_tried_until_the_agent_accepts_one(
    known: str, version: str | None
) -> None:
    members = card() if version is None else card(protocolVersion=version)
    observation, serving = await sent(understanding(known), members)
    message = layer(observation.message)
    assert (message.result, message.reason, message.status_code) == (OK, "", 200)
    assert names(serving)[-1] == known
    assert len(names(serving)) == len(set(names(serving))) <= 3


async def test_message_variant_of_the_cards_version_is_tried_first() -> None:
    observation, serving = await sent(understanding(*SPELLINGS), CARD_10)
    assert names(serving) == ["SendMessage"]
    observation, serving = await sent(understanding(*SPELLINGS), card(protocolVersion="0.3.0"))
    assert names(serving) == ["message/send"]
    assert "a2a-version" not in serving.posted[0].headers
    assert results(observation) == {"discovery": "ok", "message": "ok"}


async def test_message_has_the_configured_text_and_a_unique_id() -> None:
    _, first = await sent(understanding("tasks/send"))
    _, second = await sent(understanding("tasks/send"))
    calls = [got.json for got in (*first.posted, *second.posted)]
    assert len({call["id"] for call in calls}) == len(calls) == 6
    for got in first.posted:
        assert "Are you there?" in got.body.decode()
        assert got.headers["content-type"] == "application/json"
        assert "json" in got.headers["accept"]


async def test_message_contains_the_tenant_of_the_interface() -> None:
    interface = {"protocolBinding": "JSONRPC", "protocolVersion": "1.0", "tenant": "t-1"}
    _, serving = await sent(understanding("SendMessage"), card(supportedInterfaces=[interface]))
    assert serving.posted[0].json["params"]["tenant"] == "t-1"


# ── HTTP+JSON ──


def rest_card(version: str) -> dict[str, Any]:
    return card(supportedInterfaces=[{"protocolBinding": "HTTP+JSON", "protocolVersion": version}])


@pytest.mark.parametrize("version", ["1.0", "0.3.0"])
@pytest.mark.parametrize("known", ["/rest/message:send", "/rest/v1/message:send"])
async def test_rest_operation_is_requested_below_the_interface_url(known: str, version: str) -> None:
    def answers(got: Got) -> Says:
        return (
            Says(task_10("COMPLETED"), 200, "application/a2a+json") if got.path == known else Says(status=404)
        )

    observation, serving = await sent(answers, rest_card(version), "/rest")
    assert layer(observation.message).result is OK
    assert serving.posted[-1].path == known
    assert (serving.posted[-1].headers.get("a2a-version") == "1.0") == (known == "/rest/message:send")


async def test_both_rest_forms_of_0_3_are_tried() -> None:
    def answers(got: Got) -> Says:
        is_known = "parts" in got.json["message"]
        return (
            Says(task_0x("completed") | {"artifacts": []}) if is_known else Says({"message": "parts?"}, 400)
        )

    observation, serving = await sent(answers, rest_card("0.3.0"), "/rest")
    assert layer(observation.message).result is OK
    assert [got.path for got in serving.posted] == ["/rest/v1/message:send"] * 2


async def test_interface_without_a_message_path_is_not_an_agent() -> None:
    observation, serving = await sent(lambda _: Says(status=404), rest_card("1.0"), "/rest")
    message = layer(observation.message)
    assert message.result is ResultClass.NOT_AN_AGENT
    assert message.reason.startswith("HTTP 404: ")
    assert len(serving.posted) == 3


# ── the answer ──


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        (Says(rpc(result=task_0x("working") | {"id": None})), "ok"),
        (Says(rpc(result=task_0x("input-required"))), "ok"),
        (Says(rpc(result=task_0x("rejected"))), "ok"),
        (Says(rpc(result=task_0x("auth-required"))), "gated"),
        (Says(rpc(result=task_0x("failed"))), "http_error"),
        (Says(rpc_error(-32603)), "http_error"),
        (Says(rpc_error(-32005)), "ok"),
        (Says(rpc_error(-32603), 500), "http_error"),
        (Says(b"oops", 500, "text/plain"), "http_error"),
        (Says(status=401), "gated"),
        (Says(status=402), "gated"),
        (Says(status=429), "rate_limited"),
        (Says(b"<p>", 200, "text/html"), "not_an_agent"),
        (Says({"ok": True}), "not_an_agent"),
        (Says(b"{"), "invalid_document"),
        (Says(event(rpc(result=task_0x("completed"))), 200, "text/event-stream"), "ok"),
        (Says(event(rpc(result=task_0x("failed"))), 200, "text/event-stream"), "http_error"),
        (Says(status=302, headers="Location: /elsewhere\r\n"), "redirect_refused"),
    ],
)
async def test_answer_is_classified_without_a_second_message(says: Says, expected: str) -> None:
    observation, serving = await sent(lambda _: says)
    message = layer(observation.message)
    assert message.result.value == expected
    assert message.reason or expected == "ok"
    assert len(serving.posted) == 1


async def test_agent_without_a_known_variant_is_not_an_agent() -> None:
    observation, serving = await sent(lambda _: Says(rpc_error(-32601)))
    assert layer(observation.message).result is ResultClass.NOT_AN_AGENT
    assert len(serving.posted) == 3


async def test_agent_that_rejects_each_message_variant_is_alive() -> None:
    def answers(got: Got) -> Says:
        return Says(rpc_error(-32602 if got.json["method"] == "message/send" else -32601))

    # Whether that variant is tried first or last.
    for version in ("0.3.0", "0.1", "1.0"):
        observation, serving = await sent(answers, card(protocolVersion=version))
        message = layer(observation.message)
        assert message.result is OK
        assert message.reason.endswith(": JSON-RPC error -32602, 'no'")
        assert len(serving.posted) == 3


async def test_overlong_answer_counts_as_an_answer() -> None:
    observation, _ = await sent(lambda _: Says(b" " * (MAX_ANSWER_BYTES + 1)))
    message = layer(observation.message)
    assert message.result is OK
    assert "not inspected" in message.reason
    observation, _ = await sent(lambda _: Says(b" " * (MAX_ANSWER_BYTES + 1), 500))
    assert layer(observation.message).result is FAILED


async def test_slow_agent_gets_one_message() -> None:
    impatient = {"first_byte_seconds": SHORT_SECONDS, "total_seconds": SHORT_SECONDS}
    observation, serving = await sent(lambda _: Says(after_s=5), timeouts=impatient)
    assert layer(observation.message).result is ResultClass.TIMEOUT
    assert len(serving.posted) == 1


async def test_answer_with_a_finding_is_stored_as_evidence_and_a_valid_one_is_not() -> None:
    bodies = Bodies()
    failing = agent(lambda _: Says(rpc_error(-32603)), card())
    async with failing as serving, probing(bodies, **MESSAGE) as probes:
        evidence = layer((await probes.see(serving.url)).message).evidence
        assert evidence in bodies.kept
        serving.answers = understanding(*SPELLINGS)
        assert layer((await probes.see(serving.url)).message).evidence is None


# ── targets without a message ──


async def test_without_an_interface_no_message_is_sent() -> None:
    grpc = card(supportedInterfaces=[{"protocolBinding": "GRPC", "protocolVersion": "1.0"}])
    observation, serving = await sent(understanding(*SPELLINGS), grpc)
    assert (observation.message, serving.posted) == (None, [])


async def test_rate_limited_interface_gets_no_message() -> None:
    async with agent(understanding(*SPELLINGS), card()) as serving:
        asked = {"health": False, "message": {"text": "hi"}}
        serving._says = lambda got: Says(serving.card) if "card" in got.path else Says(status=429)  # type: ignore[method-assign]
        observation = await see(serving.url, ask=asked)
    assert results(observation) == {"discovery": "ok", "transport": "rate_limited"}
    assert serving.posted == []
