import asyncio

from lifesign.agent.local_runs import LocalRun


async def begun(gave_way: list[str], name: str, agent_id: str = "a") -> LocalRun:
    run = LocalRun("https://registry.example", agent_id, lambda: gave_way.append(name))
    run.begin()
    return run


async def test_each_run_waits_for_all_before_it() -> None:
    gave_way: list[str] = []
    first, second, third = [await begun(gave_way, name) for name in ("1", "2", "3")]
    assert gave_way == ["1", "2"]
    assert [run.is_first() for run in (first, second, third)] == [True, False, False]
    second.end()
    assert not third.is_first()
    first.end()
    assert third.is_first()
    third.end()


async def test_runs_of_other_agents_are_independent() -> None:
    gave_way: list[str] = []
    first, other = await begun(gave_way, "1"), await begun(gave_way, "2", "b")
    assert gave_way == []
    assert first.is_first()
    assert other.is_first()
    first.end()
    other.end()


def test_run_in_a_stopped_event_loop_delays_no_other() -> None:
    gave_way: list[str] = []
    stopped = asyncio.new_event_loop()
    stopped.run_until_complete(begun(gave_way, "1"))
    later = asyncio.run(begun(gave_way, "2"))
    assert gave_way == []
    later.end()
    stopped.close()
