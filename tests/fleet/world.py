"""One scenario in a network namespace of its own: agents, a registry and probers, and what happens to them.

    unshare --net python -m tests.fleet.world DIRECTORY FACTOR

reads `script.json` in the directory and writes `result.json` there.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from tests.fleet import network
from tests.fleet.hostile import hostile_key
from tests.fleet.hosts import (
    CANARIES,
    DOMAIN,
    INBOUND,
    LOGIN,
    NAME_SERVER,
    PORT,
    AgentHost,
    address_of,
    canaries,
    name_of,
)
from tests.fleet.kinds import CARD_PATH
from tests.fleet.login import SECRET, SECRET_VARIABLE, Login
from tests.fleet.script import INTERVAL_S, Action, Agent, Script, What
from tests.fleet.settings import (
    LOGIN_HOST,
    definition,
    heartbeat_thresholds,
    probe_thresholds,
    server_environment,
    server_options,
)
from tests.support.dns_server import dns_serving

from lifesign.client import RegistryClient
from lifesign.client.registry_errors import RegistryError
from lifesign.domain.lifecycle.verdict import DecidingEvidence

PROGRAM: Final = Path(sys.executable).with_name("lifesign")
REGISTRY_PORT: Final = 8440
STATUSES: Final = ("active", "unhealthy", "draining", "dead", "deregistered")
FAKETIME: Final = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
STALL_RUN_S, STALL_STOP_S = 0.05, 0.45
PATIENCE_S: Final = 150.0
"""For the programs to start, and for an answer of the registry on a busy machine."""


class World:
    """A fleet, what watches it, and the script that runs."""

    def __init__(self, directory: Path, script: Script, factor: float) -> None:
        self.directory = directory
        self.script = script
        self.factor = factor
        self.login = Login()
        self.hosts = {
            agent.number: AgentHost(agent.number, agent.kind, INTERVAL_S / factor, self.login)
            for agent in script.agents
        }
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.keys: dict[str, str] = {}
        self.samples: list[tuple[float, dict[str, tuple[str, str]]]] = []
        self.problems: list[str] = []
        self._began_s = 0.0
        self._began_at = datetime.now(UTC)

    @property
    def now_s(self) -> float:
        """Unscaled seconds since the script began."""
        return (time.monotonic() - self._began_s) * self.factor

    async def run(self) -> dict[str, Any]:
        """Run the script and return what the registry decided."""
        async with AsyncExitStack() as stack:
            names = {name_of(agent.number): [address_of(agent.number)] for agent in self.script.agents}
            names |= {f"canary-{number}.{DOMAIN}": [address] for number, address in enumerate(CANARIES)}
            names[LOGIN_HOST] = [LOGIN]
            await stack.enter_async_context(dns_serving(names, ttl_s=1, host=NAME_SERVER, port=53))
            await stack.enter_async_context(canaries())
            await self.login.start(LOGIN, PORT)
            stack.push_async_callback(self.login.stop)
            for host in self.hosts.values():
                await host.start()
                stack.push_async_callback(host.stop)
            stack.push_async_callback(self._end_processes)
            await self._start_registry()
            client = await stack.enter_async_context(
                RegistryClient(
                    f"http://127.0.0.1:{REGISTRY_PORT}", key=self.keys["admin"], timeout_seconds=PATIENCE_S
                )
            )
            await self._do_due_at_start()
            for agent in self.script.agents:
                await self._register(client, agent)
            for number in range(self.script.probers):
                await self._start_prober(number)
            await self._wait_for_probers(client)
            # Time that a busy machine takes to start the programs is no warm-up.
            self._began_s, self._began_at = time.monotonic(), datetime.now(UTC)
            self._spawn(self._sample(client))
            for action in self.script.actions:
                await self._until(action.at_s)
                await self._do(action)
            await self._until(self.script.ends_at_s)
            return await self._result(client)

    async def _do_due_at_start(self) -> None:
        for action in self.script.actions:
            if action.at_s == 0.0 and action.what is What.SET_CLOCK:
                self._write_clock(action.prober, action.offset_s)
            elif action.at_s == 0.0 and action.what is What.DIE:
                await self._do(action)

    async def _until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, (at_s - self.now_s) / self.factor))

    # Programs

    async def _start_registry(self) -> None:
        database = f"sqlite:///{self.directory}/registry.db"
        for role in ("admin", "prober", "hostile"):
            file = self.directory / f"{role}.key"
            await self._finish(
                "keys", "create", "--role", "prober" if role == "hostile" else role, "--name", role,
                "--write-key", str(file), "--database", database,
            )  # fmt: skip
            self.keys[role] = file.read_text().split()[-1]
        await self._start(
            "registry", "serve", "--host", "0.0.0.0", "--port", str(REGISTRY_PORT),
            "--database", database, *server_options(self.factor), environment=server_environment(self.factor),
        )  # fmt: skip
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", REGISTRY_PORT)
                writer.close()
                return
            if time.monotonic() > deadline_s:
                raise TimeoutError("the registry does not start")
            await asyncio.sleep(0.1)

    async def _start_prober(self, number: int) -> None:
        directory = self.directory / f"prober-{number}"
        directory.mkdir(exist_ok=True)
        (directory / "fleet.yml").write_text(definition(self.script, self.factor))
        clock = directory / "clock"
        if not clock.exists():
            self._write_clock(number, 0.0)
        environment = {"LIFESIGN_KEY": self.keys["prober"], SECRET_VARIABLE: SECRET}
        if any(action.what is What.SET_CLOCK for action in self.script.actions):
            environment |= {
                "LD_PRELOAD": FAKETIME,
                "FAKETIME_TIMESTAMP_FILE": str(clock),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        await self._start(
            f"prober-{number}", "crawl", "fleet.yml", "--registry", f"http://127.0.0.1:{REGISTRY_PORT}",
            environment=environment, cwd=directory,
        )  # fmt: skip

    async def _wait_for_probers(self, client: RegistryClient) -> None:
        """Wait until all of them share the shards."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            if len((await client.shards.show()).probers) >= self.script.probers:
                return
            if time.monotonic() > deadline_s:
                raise TimeoutError("the probers do not start")
            await asyncio.sleep(0.2)

    def _write_clock(self, number: int, offset_s: float) -> None:
        file = self.directory / f"prober-{number}" / "clock"
        file.parent.mkdir(exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text(f"{offset_s / self.factor:+f}\n")
        new.replace(file)

    async def _start(
        self, name: str, *arguments: str, environment: Mapping[str, str], cwd: Path | None = None
    ) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = await asyncio.create_subprocess_exec(
                PROGRAM, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=cwd or self.directory,
                env={**os.environ, "XDG_STATE_HOME": str(self.directory), **environment},
            )  # fmt: skip

    async def _finish(self, *arguments: str) -> None:
        process = await asyncio.create_subprocess_exec(
            PROGRAM, *arguments, cwd=self.directory, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "XDG_STATE_HOME": str(self.directory)},
        )  # fmt: skip
        output, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{' '.join(arguments)}: {output.decode()}")

    async def _end_processes(self) -> None:
        for task in self.tasks:
            task.cancel()
        for name, process in self.processes.items():
            if process.returncode is None:
                process.send_signal(signal.SIGCONT)
                process.kill() if name != "registry" else process.terminate()
        for process in self.processes.values():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10):
                    await process.wait()

    # Agents

    async def _register(self, client: RegistryClient, agent: Agent) -> None:
        if not agent.is_heartbeat:
            await client.agents.register(
                agent.agent_id,
                card_url=f"{self.hosts[agent.number].state.url}{CARD_PATH}",
                monitoring=DecidingEvidence.PROBE,
                heartbeat_config=probe_thresholds(self.factor),
            )
            return
        thresholds = heartbeat_thresholds(self.factor)
        record = await client.agents.register(agent.agent_id, heartbeat_config=thresholds)
        self._spawn(self._beat(agent, record.agent_key or "", thresholds.interval_seconds))

    async def _beat(self, agent: Agent, key: str, interval_s: float) -> None:
        state = self.hosts[agent.number].state
        url = f"http://{INBOUND}:{REGISTRY_PORT}"
        async with RegistryClient(url, key=key, timeout_seconds=interval_s) as client:
            due_s = time.monotonic()
            while True:
                if not state.is_dead:
                    with contextlib.suppress(RegistryError):
                        await client.agents.heartbeat(agent.agent_id)
                due_s = max(due_s + interval_s, time.monotonic())
                await asyncio.sleep(due_s - time.monotonic())

    # Actions

    async def _do(self, action: Action) -> None:
        numbers = action.hosts or tuple(self.hosts)
        match action.what:
            case What.CUT:
                await network.cut(action, numbers, are_all=not action.hosts)
            case What.CUT_INBOUND:
                await network.cut_inbound()
            case What.HEAL:
                await network.heal()
            case What.DIE:
                await asyncio.gather(*(self.hosts[number].die() for number in numbers))
            case What.REVIVE:
                await asyncio.gather(*(self.hosts[number].revive() for number in numbers))
            case What.HOSTILE_KEY:
                targets = [host.state.url for host in self.hosts.values()]
                url = f"http://127.0.0.1:{REGISTRY_PORT}"
                self._spawn(hostile_key(url, self.keys["hostile"], targets))
            case What.STOP_REGISTRY | What.CONTINUE_REGISTRY:
                self.processes["registry"].send_signal(_SIGNALS[action.what])
            case _ if "prober" in action.what or action.what is What.SET_CLOCK:
                await self._do_to_prober(action)
            case _:
                await self._do_to_answers(action, numbers)

    async def _do_to_answers(self, action: Action, numbers: Iterable[int]) -> None:
        match action.what:
            case What.ANSWER_WRONGLY | What.ANSWER_RIGHTLY:
                for number in numbers:
                    self.hosts[number].state.is_wrong = action.what is What.ANSWER_WRONGLY
            case What.REVOKE_TOKENS:
                self.login.revoke()
            case What.REJECT_TOKENS | What.ACCEPT_TOKENS:
                self.login.is_rejecting = action.what is What.REJECT_TOKENS
            case What.FAIL_LOGIN:
                await self.login.fail(action.login)
            case What.RESTORE_LOGIN:
                await self.login.fail(None)
            case _:
                raise ValueError(action.what)

    async def _do_to_prober(self, action: Action) -> None:
        if action.what is What.SET_CLOCK:
            self._write_clock(action.prober, action.offset_s)
            return
        if action.what is What.START_PROBER:
            await self._start_prober(action.prober)
            return
        prober = self.processes[f"prober-{action.prober}"]
        if action.what is What.STALL_PROBER:
            self._spawn(_stall(prober))
        elif action.what is What.RESTART_PROBER:
            prober.terminate()
            await prober.wait()
            await self._start_prober(action.prober)
        else:
            prober.send_signal(_SIGNALS[action.what])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.problems.append(f"the fleet itself failed: {error!r}")

    # Observations

    async def _sample(self, client: RegistryClient) -> None:
        while True:
            with contextlib.suppress(RegistryError):
                self.samples.append((self.now_s, await _shown(client)))
            await asyncio.sleep(INTERVAL_S / self.factor)

    async def _result(self, client: RegistryClient) -> dict[str, Any]:
        changes = []
        types: Counter[str] = Counter()
        async for event in client.events.each(page=1000):
            types[str(event.type)] += 1
            if str(event.type) == "agent.lifecycle":
                payload = event.members()["payload"]
                at_s = (
                    (datetime.fromisoformat(event.created_at) - self._began_at)
                    / timedelta(seconds=1)
                    * self.factor
                )
                changes.append(
                    {
                        "agent_id": payload["agent_id"],
                        "at_s": at_s,
                        "status": payload["new_status"],
                        "reason": payload["reason"],
                    }
                )
        for name, process in self.processes.items():
            if process.returncode not in (None, 0, -signal.SIGKILL):
                self.problems.append(f"{name} ended with {process.returncode}")
        return {
            "changes": changes,
            "event_counts": dict(sorted(types.items())),
            "samples": self.samples,
            "final": await _shown(client),
            "problems": self.problems,
        }


_SIGNALS: Final = {
    What.STOP_PROBER: signal.SIGSTOP,
    What.CONTINUE_PROBER: signal.SIGCONT,
    What.KILL_PROBER: signal.SIGKILL,
    What.STOP_REGISTRY: signal.SIGSTOP,
    What.CONTINUE_REGISTRY: signal.SIGCONT,
}


async def _stall(prober: asyncio.subprocess.Process) -> None:
    while prober.returncode is None:
        prober.send_signal(signal.SIGSTOP)
        await asyncio.sleep(STALL_STOP_S)
        prober.send_signal(signal.SIGCONT)
        await asyncio.sleep(STALL_RUN_S)


async def _shown(client: RegistryClient) -> dict[str, tuple[str, str]]:
    shown: dict[str, tuple[str, str]] = {}
    cursor = None
    while True:
        page = await client.agents.list(status=STATUSES, limit=1000, cursor=cursor)
        shown |= {agent.agent_id: (agent.status.value, agent.health.value) for agent in page.agents}
        cursor = page.cursor
        if cursor is None:
            return shown


async def main(directory: Path, factor: float) -> None:
    """Run the script of a directory."""
    script = Script.from_json((directory / "script.json").read_text())
    result = await World(directory, script, factor).run()
    (directory / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    network.set_up()
    asyncio.run(main(Path(sys.argv[1]).resolve(), float(sys.argv[2])))
