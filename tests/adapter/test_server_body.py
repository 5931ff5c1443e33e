"""How much is read of what a server at a URL answers, and what is said in place of more? A real socket."""

from typing import Any

import httpx2
import pytest
from tests.support.misbehaving_tools import http_misbehaving, tool_answer
from tests.support.servers import PATIENCE_SECONDS

from agent_health.adapter.server_body import BoundedBodies
from agent_health.adapter.server_line import TOO_LONG, UNREADABLE

WHOLE = tool_answer(7, "long", {"bytes": 5_000})


async def said(max_bytes: int, **asked: Any) -> httpx2.Response:
    with http_misbehaving() as url:
        bodies = BoundedBodies(httpx2.AsyncHTTPTransport(trust_env=False), max_bytes)
        async with httpx2.AsyncClient(transport=bodies, trust_env=False, timeout=PATIENCE_SECONDS) as http:
            return await http.post(url, json={"method": "tools/call", **asked})


@pytest.mark.parametrize(("spare_bytes", "code"), [(0, None), (1, None), (-1, TOO_LONG)])
async def test_a_body_comes_whole_or_not_at_all(spare_bytes: int, code: int | None) -> None:
    params = {"name": "long", "arguments": {"bytes": 5_000}}
    answer = await said(len(WHOLE) + spare_bytes, id=7, params=params)
    if code is None:
        assert answer.content == WHOLE
    else:
        assert (answer.json()["id"], answer.json()["error"]["code"]) == (7, code)


async def test_what_is_packed_is_not_unpacked() -> None:
    answer = await said(1_000_000, id=8, params={"name": "packed"})
    assert (answer.json()["id"], answer.json()["error"]["code"]) == (8, UNREADABLE)


async def test_a_question_that_was_none_gets_no_answer_in_place_of_one_without_an_end() -> None:
    answer = await said(1_000, params={"name": "endless"})
    assert (answer.status_code, answer.content) == (202, b"")
