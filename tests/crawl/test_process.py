"""A process of a crawl, run in the process of the test."""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from tests.support.databases import empty_url
from tests.support.servers import PATIENCE_SECONDS

from lifesign.crawl import process as module
from lifesign.crawl.process import open_ledger, run_worker_process
from lifesign.crawl.token_pipe import TokenPipe, TokenQuery, TokenReply
from lifesign.crawl.worker_config import (
    EXIT_SHARDS_WITHHELD,
    EXIT_UNFINISHED,
    RegistryAddress,
    WorkerConfig,
    WorkerStatus,
)
from lifesign.domain.credentials.token import AccessToken
from lifesign.errors import LifesignError
from lifesign.loopback.listeners import IN_THIS_PROCESS, ServerUsers
from lifesign.prober.definition.credentials import CredentialSettings
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.errors import PassDelayed
from lifesign.prober.evidence.filed_ledger import FiledLedger
from lifesign.prober.registry_exchange.registry_ledger import RegistryLedger
from lifesign.prober.secrets.credential_store import Credential
from lifesign.prober.secrets.secret_reader import Secrets
from lifesign.storage.engine import schema_version
from lifesign.storage.engine.database import open_database

SECRET = "canary-of-the-process"
DELAYED = PassDelayed("disk full", 120.0)
Acts = Callable[..., Any]


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Handle signals as before, once the process has set its own handlers."""
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)}
    yield
    for number, handler in usual.items():
        signal.signal(number, handler)


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the process forbids for the rest of its life."""
    found: list[str] = []
    monkeypatch.setattr(module, "forbid_core_dumps", lambda: found.append("core dumps"))
    return found


def definition(**members: Any) -> ProbeDefinition:
    given = {"name": "test", "targets": ["http://127.0.0.1:1/"], "networks": {"allow": ["127.0.0.0/8"]}}
    return ProbeDefinition.model_validate(given | members)


def config_of(wanted: ProbeDefinition, **members: Any) -> WorkerConfig:
    return WorkerConfig(definition=wanted, worker="worker-0", since_s=None, **members)


def run(config: WorkerConfig, tokens: Connection | None = None) -> tuple[int, list[WorkerStatus]]:
    """Return the exit code of the process, and its messages."""
    ours, theirs = Pipe()
    with pytest.raises(SystemExit) as ended:
        run_worker_process(config, theirs, tokens)
    theirs.close()
    statuses = []
    while ours.poll():
        try:
            statuses.append(ours.recv())
        except EOFError:
            break
    ours.close()
    assert isinstance(ended.value.code, int)
    return ended.value.code, statuses


def acts(monkeypatch: pytest.MonkeyPatch, act: Acts) -> None:
    async def run_worker(*arguments: Any) -> Any:
        return await act(*arguments)

    monkeypatch.setattr(module, "run_worker", run_worker)


def test_census_without_targets_is_complete(tmp_path: Path) -> None:
    IN_THIS_PROCESS.learn({7: ServerUsers(1000, None)})
    url = empty_url("sqlite", tmp_path)

    async def set_up() -> None:
        database = open_database(url)
        await database.write(schema_version.set_up_or_check)
        await database.close()

    asyncio.run(set_up())
    config = config_of(definition(results={"jsonl": str(tmp_path / "results.jsonl")}), database=url)
    code, statuses = run(replace(config, since_s=time.time()))
    assert code == 0
    assert statuses[-1].progress is not None
    assert (statuses[-1].progress.probed, statuses[-1].progress.targets) == (0, 0)
    assert statuses[-1].first_users == IN_THIS_PROCESS.first_users
    assert (tmp_path / "results.jsonl").read_bytes() == b""


@pytest.mark.parametrize(("is_done", "code"), [(True, 0), (False, EXIT_UNFINISHED)])
def test_exit_code_shows_whether_all_is_done(
    monkeypatch: pytest.MonkeyPatch, code: int, *, is_done: bool
) -> None:
    async def act(*_: object) -> bool:
        return is_done

    acts(monkeypatch, act)
    assert run(config_of(definition())) == (code, [])


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (
            DELAYED,
            EXIT_SHARDS_WITHHELD,
            WorkerStatus(withheld=("disk full", 120.0)),
        ),
        (LifesignError("no such shard"), 1, WorkerStatus(line="no such shard")),
    ],
)
def test_error_is_sent_to_the_parent(
    monkeypatch: pytest.MonkeyPatch, error: LifesignError, code: int, status: WorkerStatus
) -> None:
    async def act(*_: object) -> bool:
        raise error

    acts(monkeypatch, act)
    assert run(config_of(definition())) == (code, [status])


def with_credential() -> WorkerConfig:
    settings = {"name": "acme", "origin": "https://acme.example", "bearer": {"env": "X"}}
    wanted = definition(credentials=[settings])
    secrets = Secrets({CredentialSettings.model_validate(settings).source: SECRET})
    return config_of(wanted, secrets=secrets)


def test_defect_is_logged_without_secrets(monkeypatch: pytest.MonkeyPatch, forbidden: list[str]) -> None:
    async def act(*_: object) -> bool:
        raise RuntimeError(f"unexpected {SECRET}")

    acts(monkeypatch, act)
    code, (status,) = run(with_credential())
    assert (code, forbidden) == (1, ["core dumps"])
    assert "RuntimeError: unexpected" in (status.logged or "")
    assert SECRET not in (status.logged or "")


def test_process_without_credentials_may_dump_core(
    monkeypatch: pytest.MonkeyPatch, forbidden: list[str]
) -> None:
    async def act(*_: object) -> bool:
        return True

    acts(monkeypatch, act)
    run(config_of(definition()))
    assert forbidden == []


async def _stopped(_config: WorkerConfig, stop: asyncio.Event, report: Acts, *_: object) -> bool:
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()
    report(WorkerStatus(line="stopping"))
    return False


def test_process_stops_at_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    acts(monkeypatch, _stopped)
    assert run(config_of(definition())) == (EXIT_UNFINISHED, [WorkerStatus(line="stopping")])


@pytest.mark.parametrize("error", [None, DELAYED, LifesignError("canary")])
def test_process_ends_without_its_parent(
    monkeypatch: pytest.MonkeyPatch, error: LifesignError | None
) -> None:
    ours, theirs = Pipe()

    async def act(_config: WorkerConfig, stop: asyncio.Event, report: Acts, *_: object) -> bool:
        ours.close()
        await stop.wait()
        report(WorkerStatus(line="nobody reads this"))
        if error is not None:
            raise error
        return False

    acts(monkeypatch, act)
    with pytest.raises(SystemExit):
        run_worker_process(config_of(definition()), theirs)
    theirs.close()


def test_process_works_although_its_parent_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = Pipe()
    has_worked, lines = threading.Event(), []

    def read_late() -> None:
        assert has_worked.wait(PATIENCE_SECONDS)
        with suppress(EOFError):
            while True:
                lines.append(ours.recv().logged)

    async def act(_config: WorkerConfig, _stop: object, report: Acts, *_: object) -> bool:
        for number in range(900):
            logging.getLogger("lifesign.prober").warning("%d %s", number, "x" * 1_000)
            report(WorkerStatus())
        has_worked.set()
        return True

    acts(monkeypatch, act)
    reading = threading.Thread(target=read_late)
    reading.start()
    with pytest.raises(SystemExit):
        run_worker_process(config_of(definition()), theirs)
    theirs.close()
    reading.join()
    ours.close()
    numbers = [line.split(": ")[1].split()[0] for line in lines if line is not None]
    assert numbers == [str(number) for number in range(900)]


def test_tokens_come_from_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, tokens = Pipe()
    found: list[object] = []
    credential = Credential(
        CredentialSettings.model_validate(
            {"name": "acme", "origin": "https://acme.example", "bearer": {"env": "X"}}
        ),
        SECRET,
    )

    async def act(_config: WorkerConfig, _stop: object, _report: object, token_pipe: TokenPipe) -> bool:
        asking = asyncio.create_task(token_pipe.request(credential, None))
        query = await asyncio.to_thread(owner.recv)
        assert isinstance(query, TokenQuery)
        owner.send(TokenReply(query.number, AccessToken(value="access", renew_after_s=50.0, lifetime_s=60.0)))
        found.append((query.credential, await asking))
        return True

    acts(monkeypatch, act)
    assert run(config_of(definition()), tokens)[0] == 0
    assert found == [("acme", AccessToken(value="access", renew_after_s=50.0, lifetime_s=60.0))]
    assert tokens.closed
    owner.close()


async def test_work_of_a_registry_is_stored_in_the_results_file_too(tmp_path: Path) -> None:
    place = RegistryAddress(url="http://127.0.0.1:1", key="ahk_x", allow_plain_http=True)
    async with open_ledger(config_of(definition(), registry=place)) as ledger:
        assert isinstance(ledger, RegistryLedger)
    wanted = definition(results={"jsonl": str(tmp_path / "results.jsonl")})
    async with open_ledger(config_of(wanted, registry=place)) as ledger:
        assert isinstance(ledger, FiledLedger)
