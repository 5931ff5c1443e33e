import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.complaints import problems_in
from tests.support.crawling import Shown
from tests.support.definitions import definition_of
from tests.support.hostile_server import CARD_PATH, HostileServer, answer
from tests.support.mixed_directory import DEFINITION, mixed_directory
from tests.support.registry_server import ADMIN_KEY, RegistryServer

from lifesign.cli import main
from lifesign.cli.commands.recheck import write_target
from lifesign.client import RegistryClient
from lifesign.crawl.backend import open_local_backend
from lifesign.crawl.local_registry import LocalRegistry, LocalTargets
from lifesign.crawl.run import Crawl
from lifesign.domain.access.permissions import Role
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.models.base import moment
from lifesign.domain.models.directories import ImportPageRequest
from lifesign.domain.models.shards import ShardClaimRequest
from lifesign.domain.models.targets import ObservedTarget, TargetRecord
from lifesign.domain.observation.evidence_age import UnknownReason
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.targets.target import target_id
from lifesign.registry.probing.claim_shards import claim_shards

SELDOM = DEFINITION.replace("interval_seconds: 1,", "interval_seconds: 86400,")
"""In these tests targets are probed on request only."""


async def recheck(*arguments: str) -> int:
    # The command opens a loop of its own.
    return await asyncio.to_thread(main, ["recheck", *arguments])


@asynccontextmanager
async def watched(directory: Path, text: str = SELDOM) -> AsyncIterator[tuple[str, dict[str, HostileServer]]]:
    """Watch a directory whose agents are hardly ever due; gives the database, and the agents."""
    database = f"sqlite:///{directory}/mixed.db"
    async with mixed_directory(directory) as servers, open_local_backend(database) as home:
        definition = definition_of(text, directory / "mixed.yml")
        stop, shown = asyncio.Event(), Shown()
        crawling = asyncio.create_task(Crawl(definition, home, shown, stop).watch(processes=1))
        await shown.until(lambda state: sum(state.results.values()) == 6)
        try:
            yield database, servers
        finally:
            stop.set()
            await crawling


async def test_watched_target_is_probed_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with watched(tmp_path) as (database, servers):
        server = servers["healthy"]
        assert server.heads == []
        assert await recheck(server.url, "--database", database) == 0
        shown = capsys.readouterr().out
        assert CARD_PATH in server.paths
        assert shown.startswith(f"{server.url}/\nalive: a card, a health document; its interface: ")
        assert re.search(r"^Seen 20\S+Z\. .* active, its health healthy\.$", shown, re.MULTILINE)
        # Asked again within the minute, it says so.
        assert await recheck(server.url, "--database", database) == 1
        assert re.search(r"wait \d+ s", capsys.readouterr().err)
        page = servers["page"]
        assert await recheck(target_id(f"{page.url}/"), "--database", database, "--json") == 1
        seen = json.loads(capsys.readouterr().out)
        assert (seen["url"], seen["result"]) == (f"{page.url}/", "not_an_agent")


async def test_recheck_of_opted_out_target_does_not_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifesign.registry.targets.recheck_target.RECHECK_SECONDS", 0.0)
    async with watched(tmp_path) as (database, servers):
        server = servers["healthy"]
        for path in server.replies:
            server.replies[path] = answer(429, Retry_After="3600")
        assert await recheck(server.url, "--database", database) == 2
        shown = capsys.readouterr()
        assert "429" in shown.out
        assert shown.err.endswith(": rate_limited\n")
        asked = len(server.heads)
        assert await recheck(server.url, "--database", database, "--wait", "600") == 2
        shown = capsys.readouterr()
        assert "429" in shown.out
        assert re.match(r"it asked to be left alone until 20[-0-9]+T[:0-9]+Z \(Retry-After\)", shown.err)
        assert len(server.heads) == asked


@pytest.mark.parametrize(
    ("change", "result"),
    [
        (("opt_out: {robots_txt: false}", "opt_out: {robots_txt: true}"), "not_measured"),
        (("networks: {allow: [127.0.0.0/8]}", ""), "blocked_address"),
    ],
)
async def test_recheck_without_a_verdict_has_one_exit_code(
    change: tuple[str, str], result: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with watched(tmp_path, SELDOM.replace(*change)) as (database, servers):
        server = servers["healthy"]
        server.replies["/robots.txt"] = answer(200, b"User-agent: *\nDisallow: /\n")
        assert await recheck(server.url, "--database", database) == 2
        assert capsys.readouterr().err.endswith(f": {result}\n")
        assert CARD_PATH not in server.paths


async def test_recheck_reads_a_robots_txt_that_disallowed_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifesign.registry.targets.recheck_target.RECHECK_SECONDS", 0.0)
    follows = SELDOM.replace("opt_out: {robots_txt: false}", "opt_out: {robots_txt: true}")
    async with watched(tmp_path, follows) as (database, servers):
        server = servers["healthy"]
        server.replies["/robots.txt"] = answer(200, b"User-agent: *\nDisallow: /\n")
        for _ in range(2):
            assert await recheck(server.url, "--database", database) == 2
        assert set(server.paths) == {"/robots.txt"}
        server.replies["/robots.txt"] = answer(404)
        assert await recheck(server.url, "--database", database) == 0
        assert CARD_PATH in server.paths


async def test_recheck_that_measures_nothing_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(tmp_path) as (database, servers):
        url = servers["healthy"].url
        assert await recheck(url, "--database", database) == 0
        monkeypatch.setattr("lifesign.registry.targets.recheck_target.RECHECK_SECONDS", 0.0)
        capsys.readouterr()

        async def lost(targets: LocalTargets, target_id: str) -> TargetRecord:
            found = await got(targets, target_id)
            return found.model_copy(update={"probed_at": datetime.now(UTC)})

        got = LocalTargets.get
        monkeypatch.setattr(LocalTargets, "get", lost)
        assert await recheck(url, "--database", database) == 2
        assert "it was probed without a measurement" in capsys.readouterr().err


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for probers."""
    monkeypatch.setattr("lifesign.cli.commands.recheck.JOIN_SECONDS", 0.0)


@pytest.fixture
def unwatched(tmp_path: Path) -> str:
    """Return a database with one target and no prober."""
    url = f"sqlite:///{tmp_path}/crawl.db"

    async def filled() -> None:
        async with open_local_backend(url) as home:
            await home.lists.put_page("a-list", "first", 1, ImportPageRequest(urls=["https://agent.example"]))
            await home.lists.apply("a-list", "first", pages=1)

    asyncio.run(filled())
    return url


def test_without_a_prober_the_known_result_is_reported(
    unwatched: str, impatient: None, capsys: pytest.CaptureFixture[str]
) -> None:
    # A domain may be an agent's id too.
    assert main(["recheck", "agent.example", "--database", unwatched, "--wait", "600"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "https://agent.example/\nnever probed\n"
    assert f"lifesign crawl PROBE.yml --database {unwatched}\n" in shown.err


def test_prober_that_is_late_is_reported(unwatched: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def join() -> None:
        async with open_local_backend(unwatched) as home:
            asked = ShardClaimRequest(worker="worker-1", held={})
            await LocalRegistry(home.database, Role.PROBER).do(claim_shards, body=asked)

    asyncio.run(join())
    assert main(["recheck", "agent.example", "--database", unwatched, "--wait", "0"]) == 2
    assert "no probe within 0s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["https://unknown.example"], 1, "'https://unknown.example'"),
        (["no-such-agent"], 1, "no-such-agent"),
        (["ftp://agent.example"], 3, "ftp://agent.example"),
        (["https://agent.example", "--wait", "-1"], 3, "--wait"),
        ([], 3, "AGENT_ID|URL"),
    ],
)
def test_unknown_target_is_not_probed(
    arguments: list[str], code: int, message: str, unwatched: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recheck", *arguments, "--database", unwatched]) == code
    complaint = capsys.readouterr().err
    assert message in complaint
    assert len(problems_in(complaint)) == 1


def test_registered_agent_is_found_by_its_url(
    registry: RegistryServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "https://agent.example/card"
    assert main(["agents", "register", "billing-1", "--card-url", url, "--monitoring", "probe"]) == 0
    capsys.readouterr()
    assert main(["recheck", url, "--wait", "0", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["target_id"] == "billing-1"


def test_agent_may_recheck_itself_without_seeing_probers(
    registry: RegistryServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url, key = "https://agent.example/card", str(tmp_path / "key")
    register = ["agents", "register", "billing-1", "--card-url", url, "--monitoring", "probe"]
    assert main([*register, "--write-key", key]) == 0
    assert main(["recheck", "billing-1", "--wait", "0", "--key-file", key]) == 2
    assert "no probe within 0s" in capsys.readouterr().err


def test_recheck_uses_the_registry_without_a_database_option(
    registry: RegistryServer, impatient: None, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fill() -> None:
        async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
            await client.directories.put("a-list", ["https://agent.example/"])

    asyncio.run(fill())
    assert main(["recheck", "https://agent.example", "--wait", "600"]) == 2
    assert "no prober is running for this registry now" in capsys.readouterr().err
    assert main(["recheck", "https://agent.example", "--wait", "0"]) == 1
    assert main(["recheck", "https://unknown.example"]) == 1


@pytest.mark.parametrize(
    ("health", "reason", "text"),
    [
        (HealthStatus.HEALTHY, None, "its health healthy."),
        (HealthStatus.UNKNOWN, UnknownReason.ASKED_TO_WAIT, "its health unknown (asked_to_wait)."),
    ],
)
def test_unknown_health_is_shown_with_its_reason(
    capsys: pytest.CaptureFixture[str], health: HealthStatus, reason: UnknownReason | None, text: str
) -> None:
    target = TargetRecord(
        target_id="a", url="https://a.example/", result=ResultClass.OK, host="a.example", shard=0,
        directories=[], is_registered=True, added_at=moment(0), changes=[],
        observed=ObservedTarget(observed_at=moment(0)), agent_status=Status.ACTIVE, health_status=health,
        health_unknown_reason=reason,
    )  # fmt: skip
    write_target(target)
    assert capsys.readouterr().out.rstrip().endswith(text)
