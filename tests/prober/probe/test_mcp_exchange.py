from typing import Any

from tests.prober.probe.test_mcp_server import probed, rpc, stateless
from tests.support.message_server import Got, Says
from tests.support.probing import layer

from lifesign.prober.probe.mcp_exchange import MAX_ANSWER_BYTES

ASK: dict[str, Any] = {"health": False, "tools": True}


async def test_each_request_has_an_identifier_of_its_own() -> None:
    def answers(got: Got) -> Says:
        return stateless(got) if got.json["method"] == "server/discover" else rpc(got, result={"tools": []})

    observation, serving = await probed(answers, ask=ASK)
    assert [got.json["id"] for got in serving.posted] == [1, 2]
    assert layer(observation.tools).result == "ok"


async def test_answer_with_the_identifier_of_an_earlier_request_is_none() -> None:
    def answers(got: Got) -> Says:
        if got.json["method"] == "server/discover":
            return stateless(got)
        return Says({"jsonrpc": "2.0", "id": 1, "result": {"tools": []}})

    observation, _ = await probed(answers, ask=ASK)
    assert layer(observation.tools).result == "invalid_document"
    assert observation.result == "ok"


async def test_answer_above_the_limit_is_not_read() -> None:
    observation, _ = await probed(lambda _: Says(b" " * (MAX_ANSWER_BYTES + 1)), ask=ASK)
    assert layer(observation.discovery).result == "too_large"
