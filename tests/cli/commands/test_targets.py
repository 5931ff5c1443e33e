import asyncio
import csv
import io
import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.memory_ledger import batch_of
from tests.support.registry_server import ADMIN_KEY, RegistryServer

from lifesign.cli import main
from lifesign.cli.commands import targets
from lifesign.client import RegistryClient
from lifesign.crawl.backend import open_local_backend
from lifesign.crawl.local_ledger import LocalLedger
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.models.directories import ImportPageRequest
from lifesign.domain.observation.assertion import AssertionOutcome, AssertionResult, Check
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import LayerResult, Observation, ProbedDocument, ResultClass
from lifesign.domain.targets.target import host_of, shard_of, target_id
from lifesign.prober.registry_exchange.ledger import ProbeReport
from lifesign.registry.targets import list_targets

URLS = [f"https://a{number}.example/" for number in range(5)]
SEEN = {
    URLS[0]: LayerResult(result=ResultClass.OK),
    URLS[1]: LayerResult(result=ResultClass.REFUSED, reason="=1+1 closed"),
    URLS[2]: LayerResult(result=ResultClass.TIMEOUT, reason="no answer within 5 s"),
}


def assertion(result: AssertionOutcome, actual: str) -> AssertionResult:
    return AssertionResult(of="tool", check=Check.TEXT_CONTAINS, result=result, expected="a", actual=actual)


READ: dict[str, dict[str, Any]] = {
    URLS[0]: {
        "readiness": LayerResult(result=ResultClass.OK),
        "document": ProbedDocument(status=HealthStatus.UNHEALTHY, timestamp=datetime.now(UTC)),
    }
}
"""Health documents of targets."""
WRONG = {
    URLS[0]: (
        assertion(AssertionOutcome.OK, "a"),
        *[assertion(AssertionOutcome.ASSERTION_FAILED, "b")] * 2,
    ),
    URLS[1]: (assertion(AssertionOutcome.OK, 'a {"result":"assertion_failed"}'),),
}
"""Assertions of targets; a text of the last one looks like a failed one."""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a database that is only read: of five targets in one directory three were probed."""
    url = f"sqlite:///{tmp_path_factory.mktemp('crawl')}/crawl.db"

    async def filled() -> None:
        async with open_local_backend(url) as home:
            await home.lists.put_page("a-list", "first", 1, ImportPageRequest(urls=URLS[::-1]))
            while (await home.lists.apply("a-list", "first", pages=1)).is_under_way:
                pass
            ledger = LocalLedger(home.database)
            claims = {claim.shard: claim for claim in (await ledger.claim("worker-1", 60.0, {})).claims}
            now = datetime.now(UTC)
            for number, (target, card) in enumerate(SEEN.items(), 1):
                seen = Observation(
                    target_url=target,
                    observed_at=now,
                    discovery=card,
                    assertions=WRONG.get(target),
                    **READ.get(target, {}),
                )
                report = ProbeReport(
                    subject_id=target_id(target),
                    observation=seen,
                    memory=ProbeMemory(),
                )
                claim = claims[shard_of(host_of(target))]
                await ledger.report([batch_of(claim, [report], first=number)], 300.0)

    asyncio.run(filled())
    return url


def run(*arguments: str) -> int:
    return main(["targets", "list", *arguments])


def test_each_target_is_listed_with_its_last_result(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--database", database) == 0
    heads, *rows, last = capsys.readouterr().out.splitlines()
    assert last == "1 of these targets has failed assertions"
    assert heads.split() == ["URL", "IS", "RESULT", "HEALTH", "SINCE", "MEASURED", "WHY"]
    found = {row.split()[0]: re.split(r" {2,}", row)[1:] for row in rows}
    assert set(found) == set(URLS)
    assert found[URLS[0]][:3] == ["alive", "ok", "unhealthy"]
    assert found[URLS[0]][5].endswith("; 2 assertions failed")
    assert found[URLS[1]][:3] == ["not alive", "refused", "-"]
    assert found[URLS[2]][5] == "no answer within 5 s"
    assert found[URLS[3]][:5] == ["unknown", "never_probed", "-", "-", "-"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--result", "timeout"], URLS[2:3]),
        (["--result", "timeout", "--result", "refused"], URLS[1:3]),
        (["--result", "blocked_address"], []),
        (["--result", "not_measured"], []),
        (["--result", "never_probed"], URLS[3:]),
        (["--result", "never_probed", "--result", "ok"], [URLS[0], *URLS[3:]]),
        (["--directory", "a-list"], URLS),
        (["--alive"], URLS[:1]),
        (["--not-alive"], URLS[1:3]),
        (["--alive", "--not-alive", "--result", "timeout"], URLS[:3]),
        (["--alive", "--result", "never_probed"], [URLS[0], *URLS[3:]]),
        (["--layer-result", "timeout", "--layer-result", "ok"], [URLS[0], URLS[2]]),
        (["--layer-result", "timeout", "--alive"], []),
        (["--failed-assertions"], URLS[:1]),
        (["--failed-assertions", "--not-alive"], []),
    ],
)
def test_targets_are_filtered_by_the_options(
    options: list[str], found: list[str], database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--database", database, "--json", *options) == 0
    shown = json.loads(capsys.readouterr().out)
    assert sorted(target["url"] for target in shown["targets"]) == found
    assert shown["total"] == len(found)
    lives = {URLS[0]: "alive", URLS[1]: "not_alive", URLS[2]: "not_alive"}
    assert all(target["is"] == lives.get(target["url"], "unknown") for target in shown["targets"])


def test_csv_has_targets_of_all_pages_and_no_formulas(
    database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "MAX_PAGE", 2)
    assert run("--database", database, "--csv") == 0
    heads, *rows = csv.reader(io.StringIO(capsys.readouterr().out, newline=""))
    assert heads == ["url", "is", "result", "reported_health", "result_since", "observed_at", "why"]
    found = {row[0]: row[1:] for row in rows}
    assert (len(rows), set(found)) == (5, set(URLS))
    results = ["ok", "refused", "timeout", "never_probed", "never_probed"]
    assert [found[url][1] for url in URLS] == results
    assert [found[url][0] for url in URLS] == ["alive", "not_alive", "not_alive", "unknown", "unknown"]
    assert [found[url][2] for url in URLS] == ["unhealthy", "", "", "", ""]
    assert found[URLS[1]][5] == "'=1+1 closed"
    assert found[URLS[3]][3:] == ["", "", ""]
    assert run("--database", database, "--json", "--limit", "3") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (len(shown["targets"]), shown["total"]) == (3, 5)
    assert run("--database", database, "--limit", "3") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 of 5 (see --limit)"
    assert run("--database", database, "--result", "gated") == 0
    assert capsys.readouterr().out == "no target matches\n"


@pytest.mark.parametrize("common", [0, 20_000], ids=["walked along", "sorted"])
def test_targets_are_shown_by_host_and_filtered_by_substring(
    common: int, database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "MAX_PAGE", 2)
    monkeypatch.setattr(list_targets, "COMMON", common)

    def csv_rows(*options: str) -> list[list[str]]:
        assert run("--database", database, "--csv", *options) == 0
        return list(csv.reader(io.StringIO(capsys.readouterr().out, newline="")))[1:]

    assert [row[0] for row in csv_rows()] == sorted(URLS)
    assert [row[0] for row in csv_rows("--limit", "3")] == sorted(URLS)[:3]


def test_targets_of_the_registry_are_listed_without_a_database_option(
    registry: RegistryServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fill() -> None:
        async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
            await client.directories.put("a-list", URLS[::-1])

    asyncio.run(fill())
    assert run("--registry", registry.url, "--csv") == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out, newline="")))
    assert [row[0] for row in rows[1:]] == sorted(URLS)
    assert run("--directory", "none") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--result", "dead"], "--result"),
        (["--layer-result", "never_probed"], "--layer-result"),
        (["--json", "--csv"], "--csv"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_wrong_usage_is_one_line(
    options: list[str], message: str, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--database", database, *options) == 3
    complaint = capsys.readouterr().err
    assert message in complaint
    assert complaint.count("\n") == 1


def test_target_of_a_registered_agent_differs_from_a_listed_one(
    registry: RegistryServer, capsys: pytest.CaptureFixture[str]
) -> None:
    card = "https://agent.example/.well-known/agent-card.json"
    assert main(["agents", "register", "a-1", "--monitoring", "probe", "--card-url", card]) == 0
    capsys.readouterr()
    assert run() == 0
    assert capsys.readouterr().out.splitlines()[1].endswith(" a-1")
