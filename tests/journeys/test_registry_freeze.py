"""Answers while PostgreSQL is frozen, and recovery after it.

Its processes are suspended (SIGSTOP): nothing is refused and nothing is answered, as when a machine is
suspended, a disk hangs, or a network drops everything.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.support.databases import bare_url
from tests.support.registry_load import Ledger, Load
from tests.support.registry_process import Freezer, agent_key, prepare, registry, with_database

from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log

AGENTS = [f"agent-{number}" for number in range(8)]
STRICT = [f"strict-{number}" for number in range(4)]
"""Beat all the time but in a freeze and shortly after, which together is longer than they may be silent."""
CONFIG = {"interval_seconds": 1, "unhealthy_after_seconds": 3, "dead_after_seconds": 6}
ANSWER_SECONDS = 1.0
FACTS_BETWEEN = 10
BEAT_EVERY_S = 0.2
LATENESS_S = 0.5
"""What an answer may take on its way, and a sweep to see a heartbeat."""
SILENT_AFTER_S = 1.0
"""Two sweeps of the server: without punctual heartbeats, no agent may seem silent so early."""


class Speaker:
    """One of the strict agents: it sends heartbeats all the time but in a freeze and shortly after."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self.longest_silence_s = 0.0
        """Longest time between two accepted heartbeats, without freezes: a busy machine sends late."""
        self._silent_since_s: float | None = None
        self._frozen_at_s: float | None = None

    def begin_freeze(self) -> None:
        """Count no silence until `end_freeze`."""
        self._frozen_at_s = time.monotonic()

    def end_freeze(self) -> None:
        """Go on with the silence before the freeze."""
        assert self._frozen_at_s is not None
        if self._silent_since_s is not None:
            self._silent_since_s += time.monotonic() - self._frozen_at_s
        self._frozen_at_s = None

    def accepted(self) -> None:
        """Note that its registration or a heartbeat was accepted."""
        if self._frozen_at_s is not None:
            return
        now_s = time.monotonic()
        if self._silent_since_s is not None:
            self.longest_silence_s = max(self.longest_silence_s, now_s - self._silent_since_s)
        self._silent_since_s = now_s

    def check(self, steps: list[str]) -> None:
        """Fail unless it was active all the time; if it was late, it may have been unhealthy."""
        longest_s = self.longest_silence_s
        allowed = {"active"}
        if longest_s > CONFIG["unhealthy_after_seconds"] - LATENESS_S:
            allowed.add("unhealthy")
        assert set(steps) <= allowed, f"{self.agent_id}, silent for {longest_s:.2f} s at most: {steps}"
        assert steps.count("active") == 1 + steps.count("unhealthy")


@contextmanager
def _world(directory: Path, servers: int) -> Iterator[tuple[str, list[int]]]:
    """Run servers over a database; yields its URL and their ports."""
    url = bare_url("postgresql", directory)
    prepare(url, [*AGENTS, *STRICT])
    settings = {"LIFESIGN_SERVER_DATABASE_TIMEOUT": f"{ANSWER_SECONDS:g}s"}
    with ExitStack() as stack:
        started = [stack.enter_context(registry(url, directory, settings=settings)) for _ in range(servers)]
        # Frozen processes are continued whatever fails.
        stack.callback(Freezer().thaw)
        yield url, [server.port for server in started]


async def _register(agent_id: str, load: Load) -> str:
    """Register an agent; return when that was, by the server's time.

    A busy machine may answer 503 before anything is frozen, and still write the registration.
    """
    key = agent_key(agent_id)
    body = {"agent_id": agent_id, "heartbeat_config": CONFIG}
    was_refused = False
    while True:
        status, answer = await load.ask("POST", "/agents", body, key=key)
        if status == 409 and was_refused:
            status, answer = await load.ask("GET", f"/agents/{agent_id}", key=key)
        if status != 503:
            break
        was_refused = True
        await asyncio.sleep(BEAT_EVERY_S)
    assert status in {200, 201}, (status, answer)
    return str(answer["registered_at"])


async def _beat(speaker: Speaker, load: Load, may_speak: asyncio.Event) -> None:
    """Register, and send heartbeats until cancelled."""
    agent_id, key = speaker.agent_id, agent_key(speaker.agent_id)
    registered_at = await _register(agent_id, load)
    speaker.accepted()
    while await may_speak.wait():
        members = {"status": "active", "client_timestamp": registered_at}
        status, _ = await load.ask("POST", f"/agents/{agent_id}/heartbeat", members, key=key)
        assert status in {0, 200, 503}, f"{agent_id} sends heartbeats and got HTTP {status}"
        if status == 200:
            speaker.accepted()
        await asyncio.sleep(BEAT_EVERY_S)


async def _freeze(
    load: Load, speakers: list[Speaker], may_speak: asyncio.Event, seconds: float
) -> tuple[Counter[int], float, float]:
    """Freeze PostgreSQL; return the answers, the waiting times and the time until recovery."""
    ledger, freezer = load.ledger, Freezer()
    may_speak.clear()
    for speaker in speakers:
        speaker.begin_freeze()
    freezer.freeze()
    ledger.statuses.clear()
    ledger.slowest_s = 0.0
    await asyncio.sleep(seconds)
    # While nothing but the servers themselves can answer.
    await load.until_refused()
    counts, slowest_s = Counter(ledger.statuses), ledger.slowest_s
    freezer.thaw()
    for speaker in speakers:
        speaker.end_freeze()
    recovering = asyncio.create_task(_recovery_s(load))
    # A fixed time, even if the recovery takes longer on a busy machine.
    await asyncio.sleep(SILENT_AFTER_S)
    may_speak.set()
    return counts, slowest_s, await recovering


async def _recovery_s(load: Load) -> float:
    """Return the time until a change is acknowledged again."""
    began_s = time.monotonic()
    await load.until_acknowledged(1)
    return time.monotonic() - began_s


async def _drill(url: str, ports: list[int], freezes_s: list[float]) -> None:
    ledger = Ledger()
    counts: Counter[int] = Counter()
    slowest_s, recovery_s = 0.0, 0.0
    speakers = [Speaker(agent_id) for agent_id in STRICT]
    async with Load(AGENTS, ports, ledger) as load, asyncio.TaskGroup() as beating:
        may_speak = asyncio.Event()
        may_speak.set()
        beats = [beating.create_task(_beat(speaker, load, may_speak)) for speaker in speakers]
        for seconds in freezes_s:
            await load.until_acknowledged(FACTS_BETWEEN)
            now, waited_s, well_after_s = await _freeze(load, speakers, may_speak, seconds)
            counts += now
            slowest_s, recovery_s = max(slowest_s, waited_s), max(recovery_s, well_after_s)
        await load.until_acknowledged(FACTS_BETWEEN)
        for send_heartbeat in beats:
            send_heartbeat.cancel()
    report = await with_database(url, ledger.check)
    assert ledger.unanswered == 0, "no server has stopped"
    steps = await with_database(url, lambda database: database.read(_steps_of_strict))
    for speaker in speakers:
        speaker.check(steps[speaker.agent_id])
    longest_s = max(speaker.longest_silence_s for speaker in speakers)
    print(  # noqa: T201 - the figures of the drill
        f"{len(freezes_s)} freezes: {counts[503]} answered 503, slowest {slowest_s:.2f} s, "
        f"well again after at most {recovery_s:.2f} s, {report.events} events, "
        f"strict agents silent for at most {longest_s:.2f} s"
    )


def _steps_of_strict(transaction: Transaction) -> dict[str, list[str]]:
    """Return the statuses of the agents that sent all heartbeats."""
    last = event_log.last_sequence(transaction)
    events = [*event_log.between(transaction, 1, last)]
    return {
        agent_id: [
            event.payload["new_status"]
            for event in events
            if event.type == "agent.lifecycle" and event.payload["agent_id"] == agent_id
        ]
        for agent_id in STRICT
    }


@pytest.mark.fault
def test_frozen_postgresql_gives_503_and_no_agent_dies(tmp_path: Path) -> None:
    with _world(tmp_path, 1) as (url, ports):
        asyncio.run(_drill(url, ports, [5.5]))


async def _register_in_freezes(url: str, ports: list[int]) -> list[str]:
    """Register agents while PostgreSQL is frozen until one answered 503 is registered; return all."""
    ledger, freezer = Ledger(), Freezer()
    registered: list[str] = []
    async with Load([], ports, ledger) as load:
        # A busy machine may answer before the transaction has begun: then nothing is written.
        while not ledger.statuses[409]:
            agent_id = STRICT[len(registered)]
            ledger.statuses.clear()
            freezer.freeze()
            registering = asyncio.create_task(_register(agent_id, load))
            await load.until_refused()
            freezer.thaw()
            await registering
            registered.append(agent_id)
    await with_database(url, ledger.check)
    return registered


@pytest.mark.fault
def test_agent_reads_a_registration_stored_despite_status_503(tmp_path: Path) -> None:
    with _world(tmp_path, 1) as (url, ports):
        registered = asyncio.run(_register_in_freezes(url, ports))
        steps = asyncio.run(with_database(url, lambda database: database.read(_steps_of_strict)))
    # It sends no heartbeats, and may be unhealthy by now.
    assert [agent_id for agent_id in STRICT if steps[agent_id].count("active") == 1] == registered


@pytest.mark.fault
@pytest.mark.long
def test_freezes_of_any_length_lose_no_write_and_kill_no_agent(tmp_path: Path) -> None:
    """One of them is longer than the limit of a statement: then all connections are made again."""
    with _world(tmp_path, 2) as (url, ports):
        asyncio.run(_drill(url, ports, [5.5, 12.0, 35.0, 3.5, 5.5]))
