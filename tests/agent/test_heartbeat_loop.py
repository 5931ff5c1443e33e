import asyncio
import contextlib
import logging
import tempfile
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest
from tests.support.scripted_registry import (
    CONFLICT,
    KEY,
    NO_ANSWER,
    OWN_KEY,
    ScriptedRegistry,
    refusal,
    scripted_registry,
)
from tests.support.virtual_loop import in_virtual_time, virtual_loop

from lifesign.agent import loop_watch
from lifesign.agent.credentials import AgentKeys
from lifesign.agent.heartbeat_loop import HeartbeatLoop
from lifesign.agent.profile import AgentProfile
from lifesign.agent.registration import Load, RegistrySession

INTERVAL_S = 30.0


class RunningAgent:
    """An agent, its registry and the messages for it."""

    def __init__(self, registry: ScriptedRegistry, directory: str, **settings: Any) -> None:
        self.registry = registry
        self.directory = directory
        self.events: list[tuple[object, ...]] = []
        self.load = Load()
        keys = AgentKeys(key=KEY, key_file=f"{directory}/a.key", environment={})
        self.place = RegistrySession(AgentProfile(agent_id="a"), keys, registry.url)
        self.loop = HeartbeatLoop(
            self.place,
            self,
            lambda: self.load,
            wall_s=virtual_loop().wall_s,
            **{"chance": lambda: 0.5, **settings},
        )

    def on_drain_requested(self, why: str, timeout_s: float | None) -> None:
        self.events.append(("drain", why, timeout_s))
        self.loop.begin_drain()

    def on_registered(self, incarnation: int) -> None:
        self.events.append(("life", incarnation))

    def on_incarnation_lost(self, why: str) -> None:
        self.events.append(("lost", why))

    def on_standby(self) -> None:
        self.events.append(("aside",))


@contextlib.asynccontextmanager
async def running_agent(**settings: Any) -> AsyncIterator[RunningAgent]:
    with tempfile.TemporaryDirectory() as directory:
        async with scripted_registry() as registry:
            agent = RunningAgent(registry, directory, **settings)
            task = asyncio.create_task(agent.loop.run())
            try:
                yield agent
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await agent.place.close()


def gaps(agent: RunningAgent) -> list[float]:
    at_s = [asked.at_s for asked in agent.registry.beats()]
    return [round(after - before, 3) for before, after in pairwise(at_s)]


@in_virtual_time
async def test_heartbeats_are_sent_a_little_early_each_interval() -> None:
    async with running_agent() as agent:
        await agent.registry.until_beats(4)
        assert agent.registry.functions() == ["GET", "POST", *["beat"] * 4]
        assert agent.events == [("life", 1)]
        # A heartbeat may be early by 20 % of the interval; the scripted chance of 0.5 gives 10 %.
        assert gaps(agent) == [27.0, 27.0, 27.0]


@in_virtual_time
async def test_event_loop_is_watched_while_heartbeats_are_sent() -> None:
    async with running_agent() as agent:
        await agent.registry.until_beats(1)
        assert loop_watch._watches[asyncio.get_running_loop()].agent_ids == ["a"]
    assert asyncio.get_running_loop() not in loop_watch._watches


@in_virtual_time
async def test_agent_uses_its_own_key_and_names_its_incarnation() -> None:
    async with running_agent() as agent:
        await agent.registry.until_beats(1)
        _, first, send_heartbeat = agent.registry.asked
        assert first.headers["X-API-Key"] == KEY
        assert send_heartbeat.headers["X-API-Key"] == OWN_KEY
        assert send_heartbeat.headers["X-Agent-Incarnation"] == "1"


@in_virtual_time
async def test_heartbeat_contains_load_and_tasks() -> None:
    async with running_agent() as agent:
        agent.load = Load(3, ("task-1", "task-2"))
        await agent.registry.until_beats(1)
        body = agent.registry.beats()[0].body
        assert (body["status"], body["current_load"], body["tasks_in_progress"]) == (
            "active",
            3,
            ["task-1", "task-2"],
        )


@in_virtual_time
async def test_requested_drain_is_followed_once_and_immediately() -> None:
    async with running_agent() as agent:
        await agent.registry.until_beats(1)
        agent.registry.commands = [
            {"id": "c1", "command": "drain", "reason": "new version", "drain_timeout_seconds": 9.0}
        ]
        # The agent has obeyed the command, but another server process has not seen that and sends it again.
        send_heartbeat = agent.registry._lawful

        def forgetful(asked: Any) -> Any:
            status, body = send_heartbeat(asked)
            return status, {**body, "pending_commands": [COMMAND]} if "pending_commands" in body else body

        agent.registry._lawful = forgetful  # type: ignore[method-assign]
        await agent.registry.until_beats(3)
        ((_, incarnation), (_, why, timeout_s)) = agent.events
        assert [event[0] for event in agent.events] == ["life", "drain"]
        assert (incarnation, str(why).partition(": ")[2], timeout_s) == (1, "new version", 9.0)
        asked, draining, later = agent.registry.beats()[-3:]
        assert (asked.body["status"], draining.body["status"]) == ("active", "draining")
        assert draining.at_s - asked.at_s < 1
        assert later.at_s - draining.at_s > 20


COMMAND = {"id": "c1", "command": "drain", "reason": "new version", "drain_timeout_seconds": 9.0}


@in_virtual_time
async def test_drain_started_by_another_client_is_followed() -> None:
    async with running_agent() as agent:
        await agent.registry.until_beats(1)
        agent.registry.status = "draining"
        await agent.registry.until_beats(2)
        assert [(event[0], event[2]) for event in agent.events[1:]] == [("drain", None)]


@in_virtual_time
async def test_unknown_command_is_logged_and_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_agent() as agent:
        agent.registry.commands = [{"id": "c1", "command": "explode\n"}]
        await agent.registry.until_beats(3)
        assert agent.events == [("life", 1)]
        (warning,) = caplog.records
        assert r"'explode\n'" in warning.message


@in_virtual_time
async def test_dead_agent_drops_its_work_and_registers_again() -> None:
    async with running_agent() as agent:
        await agent.registry.until_beats(1)
        agent.registry.status = "dead"
        await agent.registry.until_beats(2)
        assert agent.registry.functions() == ["GET", "POST", "beat", "beat", "GET", "POST", "beat"]
        assert [event[0] for event in agent.events] == ["life", "lost", "life"]
        first, again = (asked for asked in agent.registry.asked if asked.function == "POST")
        # The first registration of a process supersedes its own former one; a later one supersedes no agent.
        assert (first.body.get("supersede"), again.body.get("supersede")) == (True, None)
        assert agent.registry.beats()[-1].headers["X-Agent-Incarnation"] == "2"


@in_virtual_time
async def test_agent_drained_by_another_program_deregisters_permanently() -> None:
    async with running_agent() as agent:
        await agent.registry.until_beats(1)
        # It had nothing to do: the next sweep has taken it off the list.
        agent.registry.status, agent.registry.reason = "deregistered", "drain_completed"
        await agent.loop.has_left.wait()
        assert agent.registry.functions().count("POST") == 1
        # It held no lease: its own work continues.
        assert [event[0] for event in agent.events] == ["life", "drain"]


@in_virtual_time
async def test_timeout_of_a_drain_drops_the_work() -> None:
    async with running_agent() as agent:
        await agent.registry.until_beats(1)
        agent.registry.status, agent.registry.reason = "deregistered", "drain_timeout"
        await agent.loop.has_left.wait()
        assert [event[0] for event in agent.events] == ["life", "lost", "drain"]


@pytest.mark.parametrize("status", [0, 429, 502])
def test_drained_agent_does_not_register_again_after_a_lost_answer(status: int) -> None:
    async def test() -> None:
        async with running_agent() as agent:
            await agent.registry.until_beats(1)
            agent.registry.status, agent.registry.reason = "deregistered", "drain_completed"
            # Enough for all attempts of one call.
            agent.registry.answers("GET", *[refusal(status, "away") if status else NO_ANSWER] * 10)
            async with asyncio.timeout(1000):
                await agent.loop.has_left.wait()
            assert agent.registry.functions().count("POST") == 1
            # It was unknown whether the incarnation had ended by a drain.
            assert [event[0] for event in agent.events] == ["life", "lost", "drain"]

    in_virtual_time(test)()


@in_virtual_time
async def test_incarnation_that_is_accepted_again_is_registered() -> None:
    async with running_agent() as agent:
        await agent.registry.until_beats(1)
        agent.registry.status = "dead"
        agent.registry.answers("GET", *[NO_ANSWER] * 100)
        async with asyncio.timeout(1000):
            await agent.registry.until(lambda: not agent.loop.is_registered.is_set())
            agent.registry.status = "active"
            await agent.loop.is_registered.wait()
        assert agent.registry.functions().count("POST") == 1
        assert [event[0] for event in agent.events] == ["life", "lost", "life"]


@in_virtual_time
async def test_agent_of_a_later_incarnation_than_a_restored_backup_returns_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_agent() as agent:
        await agent.registry.until_beats(1)
        agent.registry.status = "dead"
        await agent.registry.until(lambda: agent.registry.incarnation == 2)
        await agent.registry.until_beats(1)
        agent.registry.incarnation = 1
        await agent.registry.until_beats(2)
        assert [event[0] for event in agent.events] == ["life", "lost", "life", "lost", "life"]
        assert not agent.loop.is_displaced
        assert "another process" not in caplog.text


@in_virtual_time
async def test_unlisted_agent_registers_again() -> None:
    async with running_agent() as agent:
        await agent.registry.until_beats(1)
        agent.registry.status, agent.registry.reason = "deregistered", "deregistered"
        await agent.registry.until_beats(2)
        assert agent.registry.incarnation == 2


@in_virtual_time
async def test_later_of_two_processes_keeps_the_id_and_the_other_stops(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_agent() as older:
        await older.registry.until_beats(1)
        younger = RunningAgent(older.registry, older.directory)
        task = asyncio.create_task(younger.loop.run())
        try:
            await older.registry.until_beats(20)
            assert older.registry.incarnation == 2
            assert older.loop.is_displaced
            assert [event[0] for event in older.events] == ["life", "lost", "aside"]
            assert younger.events == [("life", 2)]
            errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
            assert len(errors) == 1
            assert errors[0].startswith("agent a: ")
            warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
            assert warned[0].startswith(
                "agent a: another process has registered as this agent; hint: give each"
            )
            claims = [asked for asked in older.registry.asked if asked.function == "POST"][2:]
            # Far less often than it beats.
            assert 1 <= len(claims) <= 5
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await younger.place.close()
        # The younger one is gone: the place is free.
        older.registry.status = "dead"
        await older.registry.until(lambda: older.registry.incarnation == 3)
        await older.registry.until_beats(1)
        assert not older.loop.is_displaced


@pytest.mark.parametrize("status", [0, 401, 403, 408, 499, 502])
def test_lost_registration_answer_is_recognised_as_the_processes_own(status: int) -> None:
    in_virtual_time(lose_registration_answer)(status)


async def lose_registration_answer(status: int) -> None:
    async with running_agent() as agent:
        await agent.registry.until_beats(1)
        agent.registry.status = "dead"
        lawful = agent.registry._lawful

        def lose(asked: Any) -> Any:
            agent.registry._lawful = lawful  # type: ignore[method-assign]
            lawful(asked)
            return status, {}

        await agent.registry.until(lambda: agent.registry.beats()[1:])
        agent.registry._lawful = lose  # type: ignore[method-assign]
        await agent.registry.until(lambda: agent.registry.incarnation == 3)
        await agent.registry.until_beats(1)
        assert [kind for kind, *_ in agent.events] == ["life", "lost", "life"]


@in_virtual_time
async def test_unreachable_registry_is_retried_with_backoff_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_agent(chance=lambda: 1.0) as agent:
        away = refusal(503, "unavailable")
        await agent.registry.until_beats(1)
        # Each heartbeat is tried up to five times within its own patience.
        agent.registry.answers("beat", *[away] * 40)
        await agent.registry.until(lambda: not agent.registry.scripted["beat"])
        await agent.registry.until_beats(1)
        found = [record.message for record in caplog.records]
        assert len(found) == 2
        assert found[0].startswith("agent a: the registry is unreachable: HTTP 503")
        assert found[1].startswith("agent a: ")
        assert "HTTP" not in found[1]
        assert max(gaps(agent)) <= INTERVAL_S + 1
        assert agent.events == [("life", 1)]


@pytest.mark.parametrize("status", [404, 410, 429, 503])
def test_fault_of_a_proxy_neither_ends_the_incarnation_nor_keeps_the_agent_silent(status: int) -> None:
    @in_virtual_time
    async def test() -> None:
        async with running_agent() as agent:
            await agent.registry.until_beats(1)
            agent.registry.retry_after = "300"
            agent.registry.answers("beat", (status, {"error": {"code": status, "status": "NOT_FOUND"}}))
            await agent.registry.until_beats(3)
            assert max(gaps(agent)) <= INTERVAL_S
            assert agent.events == [("life", 1)]

    test()


@in_virtual_time
async def test_refusal_is_logged_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    async with running_agent() as agent:
        unknown = refusal(401, "unknown_key", "a valid key is required")
        agent.registry.answers("POST", *[unknown] * 3, *[refusal(403, "not_permitted")] * 3, unknown)
        await agent.registry.until_beats(1)
        found = [record.message for record in caplog.records]
        refused = "agent a: a registration or heartbeat was refused, and is tried again: HTTP"
        assert [message.partition("; hint")[0] for message in found] == [
            f"{refused} 401: a valid key is required",
            f"{refused} 403: not_permitted",
            f"{refused} 401: a valid key is required",
            "agent a: the registry answers again",
        ]
        help_with_keys = "lifesign keys create --role agent --agent-id a --name a"
        assert [message.endswith(help_with_keys) for message in found] == [True, True, True, False]
        assert not any(KEY in message for message in found)


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"acknowledged": "perhaps"}),
        (500, {}),
        (302, {}),
        (422, {"error": {"code": "x" * 10_000}}),
        (418, {}),
        NO_ANSWER,
    ],
)
def test_no_answer_of_the_registry_ends_the_agent(answer: Any) -> None:
    @in_virtual_time
    async def test() -> None:
        async with running_agent() as agent:
            agent.registry.answers("POST", answer)
            await agent.registry.until_beats(1)
            agent.registry.answers("beat", *[answer] * 6)
            await agent.registry.until_beats(8)
            assert agent.registry.status == "active"

    test()


@in_virtual_time
async def test_exception_in_a_callback_does_not_end_the_heartbeat_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loads: list[Callable[[], Load]] = [lambda: Load(1 // 0)]

    async with running_agent() as agent:
        agent.loop._load = lambda: loads.pop()() if loads else Load(7)
        await agent.registry.until_beats(1)
        assert agent.registry.beats()[0].body["current_load"] == 7
        assert "ZeroDivisionError" in caplog.text


@in_virtual_time
async def test_retry_waits_as_long_as_the_registry_asks() -> None:
    async with running_agent() as agent:
        agent.registry.answers("POST", (429, {"error": {"code": "too_many_requests"}}))
        began_s = asyncio.get_running_loop().time()
        await agent.registry.until_beats(1)
        first, second = (asked.at_s for asked in agent.registry.asked if asked.function == "POST")
        assert first - began_s < 1
        assert second - first >= 0.05


@in_virtual_time
async def test_clock_difference_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with running_agent() as agent:
        agent.registry.clock_s = 61.0
        await agent.registry.until_beats(3)
        (record,) = caplog.records
        assert record.message.startswith("agent a: ")
        assert "clock is 61 s ahead" in record.message
        agent.registry.clock_s = 0.0
        await agent.registry.until_beats(1)
        agent.registry.clock_s = -100.0
        await agent.registry.until_beats(1)
        assert "100 s behind" in caplog.records[-1].message


@in_virtual_time
async def test_draining_agent_without_an_incarnation_does_not_register(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_agent() as agent:
        agent.registry.answers("POST", *[refusal(403, "not_permitted")] * 1000)
        await agent.registry.until(lambda: agent.registry.asked)
        agent.loop.begin_drain()
        await agent.loop.has_left.wait()
        assert agent.registry.beats() == []
        assert "answers again" not in caplog.text


@in_virtual_time
async def test_drain_ends_when_the_registry_deregisters() -> None:
    async with running_agent() as agent:
        await agent.registry.until_beats(1)
        agent.loop.begin_drain()
        await agent.registry.until_beats(1)
        agent.registry.status = "deregistered"
        await agent.loop.has_left.wait()
        assert agent.registry.functions().count("POST") == 1
        assert agent.events == [("life", 1)]


@in_virtual_time
async def test_manual_heartbeats_disable_automatic_ones() -> None:
    async with running_agent(is_automatic=False) as agent:
        await agent.loop.is_registered.wait()
        await asyncio.sleep(1000)
        assert agent.registry.beats() == []
        await agent.loop.send_heartbeat()
        await asyncio.sleep(1000)
        assert len(agent.registry.beats()) == 1


@in_virtual_time
async def test_waiting_for_a_heartbeat_ends_with_the_loop() -> None:
    async with running_agent() as agent:
        await agent.registry.until_beats(1)
        # An answer that never comes.
        agent.place.send_heartbeat = lambda *_, **__: asyncio.Event().wait()  # type: ignore[method-assign, assignment]
        under_way = asyncio.create_task(agent.loop.send_heartbeat())
        await asyncio.sleep(0.01)
        late = asyncio.create_task(agent.loop.send_heartbeat())
        await asyncio.sleep(0.01)
        assert not under_way.done()
    await asyncio.gather(under_way, late)
    await agent.loop.send_heartbeat()


@in_virtual_time
async def test_incarnation_of_another_worker_continues() -> None:
    async with running_agent() as agent:
        # Before it has begun to register.
        agent.registry.status, agent.registry.incarnation = "active", 4
        agent.loop.resume(4)
        await agent.registry.until_beats(2)
        assert agent.registry.functions() == ["beat", "beat"]


@in_virtual_time
async def test_loop_ends_before_the_next_heartbeat_if_another_process_sends_them() -> None:
    is_sender = True
    async with running_agent(is_sender=lambda: is_sender) as agent:
        await agent.registry.until_beats(2)
        is_sender = False
        await agent.loop.has_left.wait()
        assert len(agent.registry.beats()) == 2


@in_virtual_time
async def test_conflict_despite_supersede_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with running_agent() as agent:
        agent.registry.answers("POST", CONFLICT)
        await agent.registry.until_beats(1)
        assert ": HTTP 409" in caplog.text
        assert not agent.loop.is_displaced
