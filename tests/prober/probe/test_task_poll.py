"""Tasks that are not finished when the message is answered."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from tests.support.a2a_messages import rpc, rpc_error, task_0x, task_10
from tests.support.agent_check import card
from tests.support.message_server import Agent, Got, Says, agent
from tests.support.probing import layer, probing
from tests.support.virtual_loop import virtual_loop, with_sockets_in_virtual_time

from lifesign.domain.observation.results import Observation
from lifesign.prober.probe.task_poll import FIRST_WAIT_SECONDS, MAX_POLLS

CARD_10 = card(supportedInterfaces=[{"protocolBinding": "JSONRPC", "protocolVersion": "1.0"}])
REST_10 = card(supportedInterfaces=[{"protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}])
ANSWER = {"artifacts": [{"parts": [{"kind": "text", "text": "42"}]}]}
SENDS = {"message/send", "SendMessage"}


class Worker:
    """Starts a task and finishes it at the poll with the number `polls`; 0: never."""

    def __init__(self, polls: int, state: str = "completed", *, is_new: bool = False) -> None:
        self._polls = polls
        self._state = state
        self._is_new = is_new
        self.asked_at_s: list[float] = []

    def __call__(self, got: Got) -> Says:
        if got.json["method"] in SENDS:
            return Says(rpc(result=self._task("working", is_wrapped=self._is_new)))
        assert got.json["params"] == {"id": "t", "historyLength": 0}
        assert got.json["method"] == ("GetTask" if self._is_new else "tasks/get")
        self.asked_at_s.append(virtual_loop().time())
        is_done = len(self.asked_at_s) == self._polls
        return Says(rpc(result=self._task(self._state if is_done else "working", is_wrapped=False)))

    def _task(self, state: str, *, is_wrapped: bool) -> dict[str, Any]:
        if not self._is_new:
            return task_0x(state) | ANSWER
        wrapped = task_10(state.upper())
        return wrapped if is_wrapped else wrapped["task"] | {"artifacts": [{"parts": [{"text": "42"}]}]}


async def probe_once(serving: Agent, *assertions: dict[str, Any], **settings: Any) -> Observation:
    ask = {"transport": False, "health": False, "message": {"text": "What is 6 times 7?"}}
    # 30 s for the whole probe.
    limits = {"total_seconds": 10, "first_byte_seconds": 10}
    target = {"url": serving.url, "assertions": list(assertions)}
    async with probing(**({"ask": ask, "targets": [target], "timeouts": limits} | settings)) as probes:
        return await probes.see(serving.url)


async def asserted_of(serving: Agent) -> list[str]:
    observation = await probe_once(
        serving,
        {"of": "message", "text_contains": "42"},
        {"of": "message", "latency_below": "1s"},
    )
    assert layer(observation.message).reason == ""
    return [each.result.value for each in observation.assertions or ()]


@pytest.mark.parametrize("is_new", [False, True])
@with_sockets_in_virtual_time
async def test_assertions_apply_to_the_finished_task(is_new: bool) -> None:  # noqa: FBT001 - a parameter
    worker = Worker(2, is_new=is_new)
    async with agent(worker, CARD_10 if is_new else card()) as serving:
        # The latency is that of the whole task.
        assert await asserted_of(serving) == ["ok", "assertion_failed"]
    assert len(worker.asked_at_s) == 2


@with_sockets_in_virtual_time
async def test_http_json_requests_the_task_by_its_path() -> None:
    async with agent(lambda _: Says(task_10("WORKING")), REST_10, "/rest") as serving:
        task = task_10("COMPLETED")["task"] | {"artifacts": [{"parts": [{"text": "42"}]}]}
        serving.others = lambda _: Says(task)
        assert (await asserted_of(serving))[0] == "ok"
        polls = [got for got in serving.got if got.path.startswith("/rest/tasks/")]
    assert [got.path for got in polls] == ["/rest/tasks/t?historyLength=0"]
    assert polls[0].headers["a2a-version"] == "1.0"


@with_sockets_in_virtual_time
async def test_waits_double_until_the_deadline_of_the_probe() -> None:
    worker = Worker(0)
    async with agent(worker, card()) as serving:
        began_s = virtual_loop().time()
        observation = await probe_once(serving, {"of": "message", "text_contains": "42"})
        took_s = virtual_loop().time() - began_s
    message = layer(observation.message)
    assert (message.result.value, message.status_code) == ("timeout", 200)
    assert [each.result.value for each in observation.assertions or ()] == ["not_measured"]
    assert took_s <= 30
    assert 2 <= len(worker.asked_at_s) < MAX_POLLS
    at_s = [began_s, *worker.asked_at_s]
    for number, (before_s, then_s) in enumerate(pairwise(at_s)):
        longest_s = FIRST_WAIT_SECONDS * 2**number
        assert longest_s / 2 <= then_s - before_s <= longest_s + 0.5


@with_sockets_in_virtual_time
async def test_the_number_of_polls_is_bounded() -> None:
    worker = Worker(0)
    async with agent(worker, card()) as serving:
        limits = {"total_seconds": 100, "first_byte_seconds": 100}
        observation = await probe_once(serving, timeouts=limits)
    assert layer(observation.message).result.value == "timeout"
    assert len(worker.asked_at_s) == MAX_POLLS


@pytest.mark.parametrize(("lost", "status"), [({1}, 200), ({2, 3, 4, 5}, None)])
@with_sockets_in_virtual_time
async def test_unfinished_task_is_judged_by_the_last_poll(lost: set[int], status: int | None) -> None:
    """If that one had no answer, nothing is known about the task: the network may have failed."""
    worker = Worker(0)

    def answers(got: Got) -> Says:
        says = worker(got)
        return replace(says, after_s=1000) if len(worker.asked_at_s) in lost else says

    async with agent(answers, card()) as serving:
        limits = {"total_seconds": 10, "first_byte_seconds": 3}
        observation = await probe_once(serving, timeouts=limits)
        # Time was left for a request that shows whether the host can be reached.
        methods = [got.method for got in serving.got[-2:]]
    message = layer(observation.message)
    assert (message.result.value, message.status_code) == ("timeout", status)
    assert methods == ["POST", "GET"]


@with_sockets_in_virtual_time
async def test_a_task_that_fails_later_has_failed() -> None:
    async with agent(Worker(1, "failed"), card()) as serving:
        observation = await probe_once(serving)
    assert layer(observation.message).result.value == "http_error"


@pytest.mark.parametrize(
    "says",
    [Says(rpc_error(-32601)), Says(rpc_error(-32001)), Says(status=429), Says(status=401), Says(b"<p>")],
)
@with_sockets_in_virtual_time
async def test_agent_without_task_states_counts_as_answered(says: Says) -> None:
    def answers(got: Got) -> Says:
        return Says(rpc(result=task_0x("working"))) if got.json["method"] in SENDS else says

    async with agent(answers, card()) as serving:
        observation = await probe_once(serving)
        assert len(serving.posted) == 2
    assert layer(observation.message).result.value == "ok"
    assert "working" in layer(observation.message).reason
