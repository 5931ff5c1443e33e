"""A crawl that is stopped, or whose processes are killed.

Real processes. Their targets answer one after the other, so that there is time to interfere.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.support.agent_check import card
from tests.support.hostile_server import CARD_PATH, HostileServer, Reply, as_json, serving
from tests.support.process_tree import descendants, fork_servers, worker_processes
from tests.support.registry_server import KEYS, registry_server
from tests.support.servers import PATIENCE_SECONDS

from lifesign.client import RegistryClient
from lifesign.client.environment_variables import KEY_VARIABLE
from lifesign.domain.access.permissions import Role
from lifesign.domain.observation.results import ResultClass

HOSTS = 12
"""Each with an address of its own, and so in a shard of its own."""
SLOW_SECONDS = 0.25
CONTACT, OTHER_CONTACT = "mailto:tests@agent.example", "mailto:others@agent.example"
"""Each request names one: so it is known which machine has sent it."""
DEFINITION = f"""\
name: slow
contact: {CONTACT}
directories: [{{file: agents.txt}}]
networks: {{allow: [127.0.0.0/8]}}
opt_out: {{robots_txt: false}}
ask: {{card: true, transport: false, health: false}}
limits: {{concurrency: 2}}
"""

pytestmark = pytest.mark.fault


def slowly(reply: Reply, seconds: float) -> Reply:
    async def slow(writer: asyncio.StreamWriter, head: str) -> None:
        await asyncio.sleep(seconds)
        await reply(writer, head)

    return slow


@asynccontextmanager
async def slow_targets(
    directory: Path, *, seconds: float = SLOW_SECONDS
) -> AsyncIterator[list[HostileServer]]:
    """Serve agents on addresses of their own, and write the definition that names them."""
    async with AsyncExitStack() as stack:
        servers = []
        for number in range(2, HOSTS + 2):
            replies = {CARD_PATH: slowly(as_json(card(url="http://127.0.0.1/")), seconds)}
            servers.append(await stack.enter_async_context(serving(replies, host=f"127.0.0.{number}")))
        (directory / "slow.yml").write_text(DEFINITION)
        (directory / "other.yml").write_text(DEFINITION.replace(CONTACT, OTHER_CONTACT))
        (directory / "agents.txt").write_text("".join(f"{server.url}\n" for server in servers))
        yield servers


@asynccontextmanager
async def crawling(
    directory: Path, *options: str, definition: str = "slow.yml"
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the command in a separate session; remaining processes are killed at the end."""
    command = Path(sys.executable).with_name("lifesign")
    process = await asyncio.create_subprocess_exec(
        command,
        "crawl",
        definition,
        "--once",
        *options,
        cwd=directory,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    """Wait for the end of a crawl; return its exit code and its output."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        _, output = await process.communicate()
    return process.returncode or 0, output.decode()


async def until_requested(servers: list[HostileServer], count: int) -> None:
    """Wait until so many targets were requested."""
    await until(lambda: sum(bool(server.heads) for server in servers) >= count)


async def until(is_so: Callable[[], bool]) -> None:
    """Poll, since another process acts."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():  # noqa: ASYNC110 - another process acts
            await asyncio.sleep(0.02)


def is_running(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return (
            re.search(r"^State:\s+[^ZX]", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE) is not None
        )
    return False


@pytest.mark.parametrize(
    ("workers", "signals"),
    [
        ("1", [signal.SIGINT]),
        pytest.param("2", [signal.SIGINT], marks=pytest.mark.long),
        # A closed terminal sends two signals: one by the shell, one by the kernel.
        pytest.param("2", [signal.SIGHUP, signal.SIGHUP], marks=pytest.mark.long),
    ],
)
async def test_ctrl_c_ends_a_crawl_and_the_next_one_continues(
    workers: str, signals: list[signal.Signals], tmp_path: Path
) -> None:
    async with slow_targets(tmp_path) as servers:
        async with crawling(tmp_path, "--workers", workers) as process:
            await until_requested(servers, 4)
            # A terminal sends a signal to all processes at once.
            for number in signals:
                os.killpg(process.pid, number)
                await asyncio.sleep(0.2)
            code, output = await ended(process)
        assert (code, "Traceback" in output) == (4, False), output
        asked = Counter({server.url: len(server.heads) for server in servers})
        assert 4 <= sum(bool(count) for count in asked.values()) < HOSTS
        async with crawling(tmp_path, "--workers", workers) as process:
            code, output = await ended(process)
        assert code == 0, output
        assert "continuing the pass that began at" in output
        # No target was probed twice, except those in progress when it ended.
        again = [
            server.url for server in servers if asked[server.url] and len(server.heads) > asked[server.url]
        ]
        assert len(again) <= 2 * int(workers), output
        assert all(server.heads for server in servers)


@pytest.mark.long
async def test_killed_process_is_replaced_and_no_target_is_skipped(tmp_path: Path) -> None:
    async with slow_targets(tmp_path) as servers, crawling(tmp_path, "--workers", "2") as process:
        await until_requested(servers, 3)
        os.kill(worker_processes(process.pid)[0], signal.SIGKILL)
        code, output = await ended(process)
    assert code == 0, output
    assert re.search(r"worker-\d died \(signal 9\): it is replaced in 1 s", output)
    assert f"of {HOSTS} probed" in output
    assert all(server.heads for server in servers)


@pytest.mark.long
async def test_living_processes_finish_a_crawl_whose_fork_server_is_killed(tmp_path: Path) -> None:
    async with slow_targets(tmp_path) as servers, crawling(tmp_path, "--workers", "2") as process:
        await until_requested(servers, 3)
        (fork_server,) = fork_servers(process.pid)
        os.kill(fork_server, signal.SIGKILL)
        code, output = await ended(process)
    assert code == 0, output
    assert f"of {HOSTS} probed" in output
    assert all(len(server.heads) == len({*server.heads}) > 0 for server in servers)


@pytest.mark.long
async def test_killed_crawl_leaves_no_processes(tmp_path: Path) -> None:
    async with slow_targets(tmp_path) as servers:
        async with crawling(tmp_path, "--workers", "2") as process:
            await until_requested(servers, 3)
            processes = worker_processes(process.pid)
            assert len(processes) == 2
            processes = descendants(process.pid)
            process.kill()
            await until(lambda: not any(is_running(pid) for pid in processes))
        # And the next one neither waits for its leases nor finds the database locked.
        async with crawling(tmp_path) as process:
            code, output = await ended(process)
    assert code == 0, output
    assert "continuing the pass" in output


@pytest.mark.long
@pytest.mark.parametrize(
    ("asked_before", "seconds"), [(0, SLOW_SECONDS), (2, 4 * SLOW_SECONDS)], ids=["at once", "later"]
)
async def test_machines_that_share_a_registry_work_on_one_pass(
    asked_before: int, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEYS[Role.PROBER])
    with registry_server(tmp_path) as registry:
        options = ("--registry", registry.url)
        async with (
            slow_targets(tmp_path, seconds=seconds) as servers,
            crawling(tmp_path, *options) as first,
        ):
            await until_requested(servers, asked_before)
            async with crawling(tmp_path, *options, definition="other.yml") as second:
                ends = await asyncio.gather(ended(first), ended(second))
        assert [code for code, _ in ends] == [0, 0], ends
        async with RegistryClient(registry.url, key=KEYS[Role.PROBER]) as client:
            counts = await client.census.counts()
    # The new prober gets half of the shards. Results that were not delivered are void and their targets are
    # probed again, but each is counted once, and no machine probes one twice.
    assert {row.result: row.count for row in counts.targets} == {ResultClass.OK: HOSTS}
    found = [text for _, text in ends]
    for server in servers:
        assert server.heads
        for contact in (CONTACT, OTHER_CONTACT):
            assert sum(contact in head for head in server.heads) <= len(counts.runs), found
    # Both continue the first worker's pass, unless they started at the same moment.
    assert sum("continuing the pass" in text for text in found) == 2 - len(counts.runs), found
