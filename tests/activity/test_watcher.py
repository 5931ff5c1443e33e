import asyncio
import itertools
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.support.hostile_server import answer, as_json
from tests.support.opencode_events import ENVELOPES, Envelope, captured, failed, idle, status, tool
from tests.support.opencode_server import opencode
from tests.support.registry_server import ADMIN_KEY, RegistryServer
from tests.support.servers import PATIENCE_SECONDS
from tests.support.virtual_loop import in_virtual_time

from lifesign.activity import watcher
from lifesign.activity.heartbeat_sink import (
    Dropped,
    HeartbeatAccepted,
    HeartbeatRefused,
    RegistryHeartbeatSink,
)
from lifesign.activity.opencode import NotOpencode, OpencodeServer
from lifesign.activity.watch_events import WatchEvent, WatchEventKind
from lifesign.activity.watcher import MAX_GAP_SECONDS, RECORD_EVERY_SECONDS, AgentRefused, Watcher
from lifesign.client import RegistryClient
from lifesign.domain.activity import passive_heartbeat
from lifesign.domain.activity.passive_heartbeat import MIN_GAP_S, DueHeartbeat
from lifesign.domain.models.agents import AgentRecord, HeartbeatConfig
from lifesign.errors import InvalidValue

INTERVAL_S = 30.0


class OwnHeart:
    """A registry in the test's own hands: takes heartbeats, unless it gets the command do something else."""

    def __init__(self) -> None:
        self.beats: list[tuple[float, str, str]] = []
        """When, whose, and why."""
        self.ending: dict[str, HeartbeatAccepted | HeartbeatRefused | Dropped] = {}
        self.metadata: dict[str, dict[str, Any]] = defaultdict(dict)
        self.thresholds = HeartbeatConfig(interval_seconds=int(INTERVAL_S))

    async def send_heartbeat(self, due: DueHeartbeat) -> HeartbeatAccepted | HeartbeatRefused | Dropped:
        self.beats.append((asyncio.get_running_loop().time(), due.agent_id, due.source))
        return self.ending.get(due.agent_id, HeartbeatAccepted("active"))

    async def record(self, agent_id: str) -> AgentRecord | HeartbeatRefused | Dropped:
        ending = self.ending.get(agent_id)
        if isinstance(ending, HeartbeatRefused | Dropped):
            return ending
        return AgentRecord.model_construct(
            agent_id=agent_id, heartbeat_config=self.thresholds, metadata=self.metadata[agent_id]
        )

    def times(self, agent_id: str = "a") -> list[float]:
        return [at_s for at_s, whose, _ in self.beats if whose == agent_id]

    def sources(self) -> list[str]:
        return [source for _, _, source in self.beats]


class Watching:
    """A running watcher and its log messages."""

    def __init__(self, heart: OwnHeart, expected: list[WatchEvent], task: "asyncio.Task[None]") -> None:
        self.heart = heart
        self.events = expected
        self.task = task

    def texts(self, what: WatchEventKind) -> list[str]:
        return [event.text for event in self.events if event.what is what]

    async def until(self, what: WatchEventKind, times: int = 1) -> None:
        async with asyncio.timeout(600):
            while len(self.texts(what)) < times:
                assert not self.task.done(), self.task
                await asyncio.sleep(0.01)


@asynccontextmanager
async def watching(
    url: str,
    mapped: Mapping[str, Collection[str]],
    heart: OwnHeart | None = None,
) -> AsyncIterator[Watching]:
    """Watch until the block ends."""
    heart, events = heart or OwnHeart(), list[WatchEvent]()
    async with OpencodeServer(url) as server:
        watcher = Watcher(server, heart, mapped, events.append, chance=lambda: 1.0)
        task = asyncio.ensure_future(watcher.run())
        try:
            yield Watching(heart, events, task)
        finally:
            task.cancel()
            # Tests that expect a failure have seen it.
            await asyncio.gather(task, return_exceptions=True)


async def test_session_activity_reaches_a_real_registry(registry: RegistryServer) -> None:
    async with RegistryClient(registry.url, key=ADMIN_KEY) as client, opencode(ses_1="busy") as (fake, url):
        record = await client.agents.register("a", metadata={"opencode_session": "ses_1"})
        assert record.agent_key is not None
        events: list[WatchEvent] = []
        async with (
            OpencodeServer(url) as server,
            RegistryHeartbeatSink(registry.url, {"a": record.agent_key}) as heart,
        ):
            task = asyncio.ensure_future(
                Watcher(server, heart, {"a": []}, events.append, chance=lambda: 1.0).run()
            )
            await fake.is_listened_to()
            fake.says(tool("ses_1"))
            async with asyncio.timeout(PATIENCE_SECONDS):
                while WatchEventKind.HEARTBEAT not in [one.what for one in events]:
                    assert not task.done(), task
                    await asyncio.sleep(0.01)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        seen = await client.agents.get("a")
    assert seen.reported.current_load == 1
    assert seen.reported.last_heartbeat_at is not None
    assert seen.reported.last_heartbeat_at > seen.registered_at
    assert [one.text for one in events if one.what is WatchEventKind.HEARTBEAT] == [
        "ses_1: message.part.updated"
    ]
    assert "ahk_" not in repr(events)


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_activity_is_a_heartbeat_every_five_seconds_at_most(envelope: Envelope) -> None:
    @in_virtual_time
    async def run() -> None:
        async with opencode(envelope, ses_1="busy") as (fake, url), watching(url, {"a": ["ses_1"]}) as seen:
            await fake.is_listened_to()
            await seen.until(WatchEventKind.SERVER_REACHABLE)
            for _ in range(40):
                fake.says(tool("ses_1"), status("ses_1", "busy"))
                await asyncio.sleep(1)
            times = seen.heart.times()
            assert all(later >= earlier + MIN_GAP_S for earlier, later in itertools.pairwise(times))
            assert len(times) == 8
            await asyncio.sleep(600)
            assert len(seen.heart.times()) == 9, "a busy session without events caused heartbeats"

    run()


@pytest.mark.parametrize(
    ("section", "source"),
    [
        ("GET /event", "session.idle"),
        ("GET /global/event", "session.idle"),
        ("GET /api/event (v2)", "session.updated"),
    ],
)
def test_burst_of_captured_events_is_one_heartbeat(section: str, source: str) -> None:
    result = captured(section)

    @in_virtual_time
    async def run() -> None:
        real = "ses_e07c55ebcffelZcTMxD0DtKdvO"
        async with opencode() as (fake, url), watching(url, {"a": [real]}) as seen:
            await fake.is_listened_to()
            await seen.until(WatchEventKind.SERVER_REACHABLE)
            fake.says(raw=result)
            await asyncio.sleep(20)
            assert seen.heart.sources() == [source]
            assert len(seen.texts(WatchEventKind.SESSION_ERROR)) == result.count(b'"session.error"')

    run()


@in_virtual_time
async def test_idle_session_keeps_its_agent_alive_while_the_server_runs() -> None:
    async with opencode(ses_1="idle") as (fake, url), watching(url, {"a": ["ses_1"]}) as seen:
        await asyncio.sleep(95)
        times = seen.heart.times()
        assert [round(at_s - times[0]) for at_s in times] == [0, 30, 60, 90]
        fake.instead["/global/event"] = answer(503)
        fake.breaks_off()
        await asyncio.sleep(600)
        assert len(seen.heart.times()) == 4
        assert seen.texts(WatchEventKind.SERVER_UNREACHABLE)[-1] == "/global/event: HTTP 503"
        fake.instead.clear()
        await asyncio.sleep(95)
        assert len(seen.heart.times()) in {7, 8}
        assert len(seen.texts(WatchEventKind.SERVER_REACHABLE)) == 2


@in_virtual_time
async def test_unreachable_server_is_retried_with_backoff() -> None:
    async with opencode(ses_1="idle") as (fake, url):
        fake.instead["/global/event"] = answer(503)
        async with watching(url, {"a": ["ses_1"]}) as seen:
            await asyncio.sleep(600)
            assert 600 / 30 <= len(fake.asked) <= 600 / 30 + 6
            assert seen.texts(WatchEventKind.SERVER_UNREACHABLE) == ["/global/event: HTTP 503"]
            assert seen.heart.beats == []


@in_virtual_time
async def test_steady_stream_resets_the_reconnect_wait() -> None:
    async with opencode(ses_1="idle") as (fake, url), watching(url, {"a": ["ses_1"]}) as seen:
        for number in range(1, 9):
            await seen.until(WatchEventKind.SERVER_REACHABLE, times=number)
            await asyncio.sleep(20)
            lost_s = asyncio.get_running_loop().time()
            fake.breaks_off()
            await seen.until(WatchEventKind.SERVER_REACHABLE, times=number + 1)
            assert asyncio.get_running_loop().time() - lost_s < 1.5


@in_virtual_time
async def test_activity_during_a_lost_stream_is_found_by_a_query() -> None:
    async with (
        opencode(ses_1="busy", ses_2="busy") as (fake, url),
        watching(url, {"a": ["ses_1"], "b": ["ses_2"]}) as seen,
    ):
        await seen.until(WatchEventKind.SERVER_REACHABLE)
        fake.breaks_off()
        fake.says(idle("ses_1"))
        await seen.until(WatchEventKind.SERVER_REACHABLE, times=2)
        await asyncio.sleep(1)
        assert [(whose, source) for _, whose, source in seen.heart.beats] == [("a", "session/status")]


@in_virtual_time
async def test_wrong_server_at_the_start_ends_the_watcher_and_later_is_retried() -> None:
    html = answer(200, b"<html>", Content_Type="text/html")
    async with opencode(ses_1="idle") as (fake, url):
        fake.instead["/global/event"] = html
        async with watching(url, {"a": ["ses_1"]}) as seen:
            with pytest.raises(NotOpencode, match="text/html"):
                await asyncio.wait_for(seen.task, 600)
            assert seen.texts(WatchEventKind.ENDED) == []
        fake.instead.clear()
        async with watching(url, {"a": ["ses_1"]}) as seen:
            await seen.until(WatchEventKind.SERVER_REACHABLE)
            fake.instead["/global/event"] = html
            fake.breaks_off()
            await asyncio.sleep(300)
            assert "text/html" in seen.texts(WatchEventKind.SERVER_UNREACHABLE)[-1]
            fake.instead.clear()
            await seen.until(WatchEventKind.SERVER_REACHABLE, times=2)


@in_virtual_time
async def test_heartbeats_are_dropped_not_delayed_while_the_registry_is_unreachable() -> None:
    heart = OwnHeart()
    async with opencode(ses_1="idle") as (_, url), watching(url, {"a": ["ses_1"]}, heart) as seen:
        await seen.until(WatchEventKind.HEARTBEAT)
        heart.ending["a"] = Dropped("no connection")
        await asyncio.sleep(300)
        tried = len(heart.beats)
        assert tried == 11
        heart.ending.clear()
        await seen.until(WatchEventKind.REGISTRY_BACK)
        await seen.until(WatchEventKind.HEARTBEAT, times=2)
        assert len(heart.beats) == tried + 1
        (unreachable,) = seen.texts(WatchEventKind.REGISTRY_UNREACHABLE)
        assert unreachable.endswith(": no connection")
        assert len(seen.texts(WatchEventKind.HEARTBEAT)) == 2
    assert seen.texts(WatchEventKind.ENDED)[0].startswith("2 heartbeats sent, 10 dropped;")


@pytest.mark.parametrize(("interval_s", "gap_s"), [(1.0, MIN_GAP_S), (30.0, 30.0), (600.0, MAX_GAP_SECONDS)])
def test_refused_agent_is_reported_once_and_skipped_for_its_interval(interval_s: int, gap_s: float) -> None:
    @in_virtual_time
    async def run() -> None:
        heart = OwnHeart()
        heart.thresholds = HeartbeatConfig(
            interval_seconds=interval_s, unhealthy_after_seconds=2000, dead_after_seconds=4000
        )
        async with opencode(ses_1="busy") as (fake, url), watching(url, {"a": ["ses_1"]}, heart) as seen:
            await seen.until(WatchEventKind.SERVER_REACHABLE)
            heart.ending["a"] = HeartbeatRefused("HTTP 410: register again")
            for _ in range(240):
                fake.says(tool("ses_1"))
                await asyncio.sleep(1)
            times = heart.times()
            assert all(later >= earlier + gap_s for earlier, later in itertools.pairwise(times))
            assert 240 / (gap_s + 2) - 1 <= len(times) <= 240 / gap_s + 1
            refused, unread = seen.texts(WatchEventKind.REFUSED)
            assert refused.partition(": ")[2].startswith("HTTP 410: register again; ")
            assert refused.endswith(f" in {gap_s:g} s")
            assert unread.endswith(": HTTP 410: register again")
            heart.ending.clear()
            await asyncio.sleep(gap_s)
            fake.says(tool("ses_1"))
            await seen.until(WatchEventKind.HEARTBEAT)

    run()


@in_virtual_time
async def test_refused_first_heartbeat_ends_the_watcher() -> None:
    heart = OwnHeart()
    heart.ending["a"] = HeartbeatRefused("HTTP 401: no such key")
    async with opencode(ses_1="idle") as (_, url), watching(url, {"a": ["ses_1"]}, heart) as seen:
        with pytest.raises(AgentRefused, match=r"^a: .*: HTTP 401"):
            await asyncio.wait_for(seen.task, 600)


@in_virtual_time
async def test_start_waits_for_an_unreachable_registry() -> None:
    heart = OwnHeart()
    heart.ending["a"] = Dropped("no connection")
    heart.metadata["a"] = {"opencode_session": ["ses_1"]}
    async with opencode(ses_1="idle") as (_, url), watching(url, {"a": []}, heart) as seen:
        await asyncio.sleep(100)
        heart.ending.clear()
        await asyncio.sleep(MIN_GAP_S)
        assert len(seen.texts(WatchEventKind.REGISTRY_BACK)) == 1
        assert len(seen.texts(WatchEventKind.HEARTBEAT)) == 1


@in_virtual_time
async def test_changed_sessions_of_a_registration_are_followed() -> None:
    heart = OwnHeart()
    heart.metadata["a"] = {"opencode_session": "ses_1"}
    async with opencode(ses_1="idle", ses_2="busy") as (fake, url), watching(url, {"a": []}, heart) as seen:
        await seen.until(WatchEventKind.HEARTBEAT)
        heart.metadata["a"] = {"opencode_session": ["ses_2", 7, "../x"]}
        await seen.until(WatchEventKind.MAPPING, times=3)
        first, passed_over, changed = seen.texts(WatchEventKind.MAPPING)
        assert "ses_1" in first
        assert "ses_2" not in passed_over, "the warning names a valid entry"
        assert re.fullmatch("ses_2; .* 30 s", changed)
        await asyncio.sleep(1)
        sent = len(heart.beats)
        await asyncio.sleep(300)
        assert len(heart.beats) == sent, "a busy session caused heartbeats"
        fake.says(idle("ses_2"))
        await asyncio.sleep(1)
        assert heart.sources()[sent:] == ["session.idle"]


@in_virtual_time
async def test_two_agents_cannot_have_one_session() -> None:
    heart = OwnHeart()
    heart.metadata["b"] = {"opencode_session": "ses_1"}
    async with opencode(ses_1="idle") as (_, url):
        async with watching(url, {"a": ["ses_1"], "b": []}, heart) as seen:
            with pytest.raises(InvalidValue, match="ses_1"):
                await asyncio.wait_for(seen.task, 600)
        heart.metadata["b"] = {}
        async with watching(url, {"a": ["ses_1"], "b": []}, heart) as seen:
            await seen.until(WatchEventKind.HEARTBEAT)
            heart.metadata["b"] = {"opencode_session": "ses_1"}
            await asyncio.sleep(70)
            assert "it is a's already" in seen.texts(WatchEventKind.MAPPING)[-1]
            assert heart.times("b") == []


@in_virtual_time
async def test_errors_are_reported_with_their_session_only() -> None:
    async with opencode(ses_1="busy") as (fake, url), watching(url, {"a": ["ses_1"]}) as seen:
        await seen.until(WatchEventKind.SERVER_REACHABLE)
        fake.says(failed("ses_1"), failed(None, words="out of disk"), failed("ses_of_nobody"))
        await seen.until(WatchEventKind.SESSION_ERROR, times=2)
        await asyncio.sleep(10)
        errors = [event for event in seen.events if event.what is WatchEventKind.SESSION_ERROR]
        assert [(event.agent_id, event.text) for event in errors] == [
            ("a", "ses_1: UnknownError: no such model"),
            (None, "UnknownError: out of disk"),
        ]
        assert seen.heart.beats == []


@in_virtual_time
async def test_sessions_without_agent_are_reported_once_and_counted() -> None:
    async with opencode(ses_1="busy") as (fake, url), watching(url, {"a": ["ses_1"]}) as seen:
        await seen.until(WatchEventKind.SERVER_REACHABLE)
        fake.says(idle("ses_7"), idle("ses_8"), idle("ses_7"))
        fake.says(raw=b"data: {}\n\ndata: hello\n\n")
        await seen.until(WatchEventKind.UNKNOWN_SESSION)
        await asyncio.sleep(10)
        assert len(seen.texts(WatchEventKind.UNKNOWN_SESSION)) == 1
        assert seen.heart.beats == []
    assert "3 events of 2 sessions " in seen.texts(WatchEventKind.ENDED)[0]


@in_virtual_time
async def test_more_sessions_than_are_distinguished_are_reported_as_a_minimum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (passive_heartbeat, watcher):
        monkeypatch.setattr(module, "MAX_UNKNOWN_SESSIONS", 2)
    async with opencode(ses_1="busy") as (fake, url), watching(url, {"a": ["ses_1"]}) as seen:
        await seen.until(WatchEventKind.SERVER_REACHABLE)
        fake.says(idle("ses_7"), idle("ses_8"), idle("ses_9"))
        await seen.until(WatchEventKind.UNKNOWN_SESSION)
        await asyncio.sleep(10)
    assert "at least 2 sessions" in seen.texts(WatchEventKind.ENDED)[0]


@in_virtual_time
async def test_session_unknown_to_the_server_is_reported_without_heartbeat() -> None:
    async with opencode() as (fake, url), watching(url, {"a": ["ses_1"]}) as seen:
        await asyncio.sleep(100)
        fake.breaks_off()
        await asyncio.sleep(100)
        assert seen.heart.beats == []
        (absent,) = seen.texts(WatchEventKind.SESSION_ABSENT)
        assert absent.startswith("ses_1: ")
        fake.says(("session.created", {"sessionID": "ses_1"}))
        await seen.until(WatchEventKind.HEARTBEAT)


@in_virtual_time
async def test_unreadable_session_stops_no_heartbeats_of_other_agents() -> None:
    async with opencode(ses_1="idle", ses_2="idle") as (fake, url):
        fake.instead["/session/ses_2"] = answer(500)
        async with watching(url, {"a": ["ses_1"], "b": ["ses_2"]}) as seen:
            await asyncio.sleep(50)
            assert len(seen.heart.times("a")) == 2
            fake.breaks_off()
            await asyncio.sleep(90)
            assert (len(seen.heart.times("a")), seen.heart.times("b")) == (5, [])
            (unreadable,) = seen.texts(WatchEventKind.SESSION_UNREADABLE)
            assert unreadable.startswith("ses_2: /session/ses_2: HTTP 500: ")
            fake.says(tool("ses_2"))
            await asyncio.sleep(1)
            assert seen.heart.sources()[-1] == "message.part.updated"
            fake.instead.clear()
            await asyncio.sleep(RECORD_EVERY_SECONDS + INTERVAL_S)
            assert len(seen.heart.times("b")) > 1


@in_virtual_time
async def test_malformed_session_list_counts_as_unreachable_server() -> None:
    async with opencode(ses_1="idle") as (fake, url), watching(url, {"a": ["ses_1"]}) as seen:
        await seen.until(WatchEventKind.SERVER_REACHABLE)
        fake.instead["/session/status"] = as_json([])
        fake.breaks_off()
        await asyncio.sleep(100)
        assert "/session/status: expected a JSON object" in seen.texts(WatchEventKind.SERVER_UNREACHABLE)[-1]
        assert len(seen.texts(WatchEventKind.SERVER_REACHABLE)) == 1


@in_virtual_time
async def test_command_of_the_registry_is_reported_once() -> None:
    heart = OwnHeart()
    heart.ending["a"] = HeartbeatAccepted("draining", ("drain (cmd_1)",))
    async with opencode(ses_1="idle") as (_, url), watching(url, {"a": ["ses_1"]}, heart) as seen:
        await seen.until(WatchEventKind.HEARTBEAT, times=3)
        (command,) = seen.texts(WatchEventKind.COMMAND)
        assert " drain (cmd_1)" in command
        assert seen.texts(WatchEventKind.HEARTBEAT)[0].endswith("; its status in the registry is draining")
        heart.ending["a"] = HeartbeatAccepted("active")
        await seen.until(WatchEventKind.HEARTBEAT, times=4)
        heart.ending["a"] = HeartbeatAccepted("active", ("drain (cmd_1)",))
        await seen.until(WatchEventKind.COMMAND, times=2)


@in_virtual_time
async def test_shorter_interval_wanted_by_the_registry_is_reported() -> None:
    heart = OwnHeart()
    heart.thresholds = HeartbeatConfig(interval_seconds=1, unhealthy_after_seconds=2, dead_after_seconds=4)
    async with opencode(ses_1="idle") as (_, url), watching(url, {"a": ["ses_1"], "b": []}, heart) as seen:
        await seen.until(WatchEventKind.MAPPING, times=2)
        assert [re.findall(r"(\d+) s\b", text) for text in seen.texts(WatchEventKind.MAPPING)] == [
            ["2", "5"]
        ] * 2
        await asyncio.sleep(20)
        assert all(later >= earlier + 5 for earlier, later in itertools.pairwise(heart.times()))
