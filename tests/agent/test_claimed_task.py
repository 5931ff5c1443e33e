import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.registry_server import RegistryServer, registry_server
from tests.support.task_tools import Holder, holding

from lifesign.agent import claimed_task
from lifesign.agent.claimed_task import ClaimedTask
from lifesign.client.lease_keeper import LeaseKeeper
from lifesign.client.registry_errors import (
    NotPermitted,
    RateLimited,
    RegistryRefusal,
    Unavailable,
    Unreachable,
)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """One for all tests of this file: their agents have different names."""
    with registry_server(tmp_path_factory.mktemp("registry"), sweep_seconds=60) as server:
        yield server


@asynccontextmanager
async def claimed(
    registry: RegistryServer, agent_id: str, *, is_held: bool = False
) -> AsyncIterator[tuple[Holder, ClaimedTask]]:
    """A task, by default with a lease that is not held any more, so that no write is repeated."""
    async with holding(registry, agent_id, budget={"tokens": 10}) as holder:
        keeper = LeaseKeeper.of_task(holder.own.leases, holder.grant)
        if not is_held:
            keeper.stop_keeping()
        yield holder, ClaimedTask(holder.own, holder.grant, holder.run, keeper, chance=lambda: 0.0)


def losing_answers(write: Callable[..., Awaitable[Any]], error: BaseException, times: int) -> Any:
    """Return the same write, which is executed, but whose first answers are lost."""
    left = [error] * times

    async def lose(*given: Any, **members: Any) -> Any:
        answer = await write(*given, **members)
        if left:
            raise left.pop()
        return answer

    return lose


@pytest.mark.parametrize("error", [Unreachable("no complete answer", was_sent=True), TimeoutError()])
async def test_repeated_delegation_after_a_lost_answer_creates_one_child(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async with claimed(registry, f"delegates-{type(error).__name__.lower()}") as (holder, task):
        tasks = holder.own.tasks
        monkeypatch.setattr(tasks, "delegate_subtask", losing_answers(tasks.delegate_subtask, error, 2))
        part: dict[str, Any] = {"role_id": "nobody", "input": {"part": 1}, "budget": {"tokens": 4}}
        for _ in range(2):
            with pytest.raises(type(error)):
                await task.delegate("a part", **part)
        # Other arguments are another child, and so is the same call after an answer.
        other = await task.delegate("a part", **part | {"input": {"part": 2}, "budget": {"tokens": 1}})
        first = await task.delegate("a part", **part)
        second = await task.delegate("a part", **part)
        children = [child.task_id for child in (await holder.admin.tasks.get(holder.task_id)).children]
    assert sorted(children) == sorted([other, first, second])


@pytest.mark.parametrize("is_in_one_call", [True, False])
async def test_refused_repetition_of_a_lost_write_keeps_its_key(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch, *, is_in_one_call: bool
) -> None:
    refused = RateLimited("too many requests", status=429, code="rate_limited")
    refused.may_be_repeat = is_in_one_call
    lost = [] if is_in_one_call else [Unreachable("no complete answer", was_sent=True)]
    async with claimed(registry, f"repeats-{is_in_one_call}".lower()) as (holder, task):
        delegate, failures = holder.own.tasks.delegate_subtask, iter([*lost, refused])

        async def fail_first(*given: Any, **members: Any) -> Any:
            answer = await delegate(*given, **members)
            for failure in failures:
                raise failure
            return answer

        monkeypatch.setattr(holder.own.tasks, "delegate_subtask", fail_first)
        for error in [*lost, refused]:
            with pytest.raises(type(error)):
                await task.delegate("a part", role_id="no-such-role", budget={"tokens": 4})
        child = await task.delegate("a part", role_id="no-such-role", budget={"tokens": 4})
        children = [child.task_id for child in (await holder.admin.tasks.get(holder.task_id)).children]
    assert children == [child]


async def test_two_concurrent_writes_with_lost_answers_are_repeated_as_two(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with claimed(registry, "reports") as (holder, task):
        tasks, error = holder.own.tasks, Unreachable("no complete answer", was_sent=True)
        monkeypatch.setattr(tasks, "report_progress", losing_answers(tasks.report_progress, error, 2))
        lost = await asyncio.gather(
            task.report_progress("same"), task.report_progress("same"), return_exceptions=True
        )
        assert set(map(type, lost)) == {Unreachable}
        again = await asyncio.gather(task.report_progress("same"), task.report_progress("same"))
        assert sorted(again) == [1, 2]
        assert await task.report_progress("same") == 3


async def test_refused_write_gets_a_new_key(registry: RegistryServer) -> None:
    async with claimed(registry, "refused") as (holder, task):
        with pytest.raises(RegistryRefusal, match="budget"):
            await task.delegate("a part", role_id="no-such-role", budget={"tokens": 11})
        await holder.admin.tasks.top_up(holder.task_id, tokens=1)
        assert await task.delegate("a part", role_id="no-such-role", budget={"tokens": 11})


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("no connection", was_sent=False),
        Unreachable("no complete answer", was_sent=True),
        Unavailable("HTTP 503", status=503),
        RateLimited("too many requests", status=429, code="rate_limited"),
    ],
)
async def test_writes_are_repeated_while_the_lease_is_held(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    name = f"outage-{type(error).__name__.lower()}-{getattr(error, 'was_sent', '')}".lower()
    async with claimed(registry, name, is_held=True) as (holder, task):
        tasks = holder.own.tasks
        for write in ("report_progress", "delegate_subtask", "request_human_help"):
            monkeypatch.setattr(tasks, write, losing_answers(getattr(tasks, write), error, 3))
        assert [await task.report_progress(text) for text in ("one", "two")] == [1, 2]
        child = await task.delegate("a part", role_id="no-such-role", budget={"tokens": 4})
        await task.request_help("which logo?")
        shown = await holder.admin.tasks.get(holder.task_id)
        assert ([one.task_id for one in shown.children], shown.status) == ([child], "handoff")


async def test_refusal_after_an_unanswered_write_keeps_its_key(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with claimed(registry, "refused-later", is_held=True) as (holder, task):
        tasks, delegate = holder.own.tasks, holder.own.tasks.delegate_subtask
        refusal = NotPermitted("a proxy", status=403, code="forbidden")
        errors = iter([Unreachable("no complete answer", was_sent=True), refusal])

        async def fail_twice(*given: Any, **members: Any) -> Any:
            answer = await delegate(*given, **members)
            for error in errors:
                raise error
            return answer

        monkeypatch.setattr(tasks, "delegate_subtask", fail_twice)
        with pytest.raises(NotPermitted):
            await task.delegate("a part", role_id="no-such-role", budget={"tokens": 4})
        child = await task.delegate("a part", role_id="no-such-role", budget={"tokens": 4})
        children = [one.task_id for one in (await holder.admin.tasks.get(holder.task_id)).children]
    assert children == [child]


async def test_wait_that_a_proxy_requests_is_bounded(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []

    def note_wait(now_s: float, _deadline_s: float, _failures: int, _chance: float, wait_s: float) -> float:
        waits_s.append(wait_s)
        return now_s

    async with claimed(registry, "asked-to-wait", is_held=True) as (holder, task):
        tasks, error = holder.own.tasks, Unavailable("HTTP 503", status=503, retry_after_s=3600)
        monkeypatch.setattr(tasks, "report_progress", losing_answers(tasks.report_progress, error, 1))
        monkeypatch.setattr(claimed_task, "next_try_s", note_wait)
        await task.report_progress("one")
    assert waits_s == [claimed_task.MAX_RETRY_AFTER_SECONDS]
