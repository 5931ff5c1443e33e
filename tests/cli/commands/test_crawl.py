import asyncio
import inspect
import json
import os
import re
import signal
import time
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from tests.support.crawling import Shown
from tests.support.definitions import definition_of
from tests.support.hostile_server import CARD_PATH, HEALTH_PATH, answer, serving, silence
from tests.support.mixed_directory import DEFINITION, mixed_directory
from tests.support.registry_server import KEYS, RegistryServer
from tests.support.servers import PATIENCE_SECONDS

from lifesign.census.report_files import Report
from lifesign.cli import main
from lifesign.cli.commands.crawl import ended
from lifesign.client.environment_variables import KEY_VARIABLE
from lifesign.crawl import run as run_module
from lifesign.crawl.backend import open_local_backend
from lifesign.crawl.local_ledger import LocalLedger
from lifesign.crawl.run import Crawl, Crawled, stopped_by_signals
from lifesign.domain.access.permissions import Role
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.targets.target import SHARDS, target_id
from lifesign.prober.definition.file import read_definition_file
from lifesign.prober.definition.pacing_settings import Timeouts
from lifesign.storage.agents import agent_rows
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.sqlite import SqliteDatabase
from lifesign.storage.errors import StoreUnavailable


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIFESIGN_PROBER_DATABASE", raising=False)


def files(directory: Path) -> set[str]:
    """Return the files of a directory, without those that belong to a database."""
    return {file.name for file in directory.iterdir() if not file.name.endswith(("-wal", "-shm"))}


def content(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in directory.iterdir())


async def crawl(*arguments: str) -> int:
    # The command opens a loop of its own.
    return await asyncio.to_thread(main, ["crawl", *arguments])


async def statuses(database_url: str, *targets: str) -> dict[str, str]:
    """The status of each target that a database knows as an agent."""
    names = {target_id(f"{target}/"): target for target in targets}
    database = open_database(database_url)
    try:
        found = await database.read(lambda transaction: agent_rows.find_named(transaction, sorted(names)))
    finally:
        await database.close()
    return {names[agent.agent_id]: agent.status for agent in found}


async def test_crawl_with_once_probes_and_assesses_a_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with mixed_directory(tmp_path) as servers:
        assert await crawl("mixed.yml", "--once") == 0
        text = capsys.readouterr().err
        assert "mixed: database sqlite:///mixed.db" in text
        assert "agents.txt: 6 targets" in text
        assert "6 of 6 probed" in text
        assert "3 alive, 3 not alive" in text
        assert ": lifesign targets list --database sqlite:///mixed.db\n" in text
        assert set(servers["healthy"].paths) >= {CARD_PATH, HEALTH_PATH}
        urls = {kind: server.url for kind, server in servers.items()}
        # Once more, for programs.
        assert await crawl("mixed.yml", "--once", "--log-format", "json") == 0
        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        assert lines[0]["event"] == "mixed: database sqlite:///mixed.db"
        assert {(line["level"], line["logger"]) for line in lines} == {("INFO", "lifesign.crawl")}
        # The same database again: alive targets are probed again.
        options = ("--database", "sqlite:///mixed.db", "--report", "report")
        assert await crawl("mixed.yml", "--once", *options) == 0
        assert files(tmp_path / "report") == {
            "census.md",
            "census.json",
            "census.csv",
            "census.html",
            "targets.csv",
        }
        text = capsys.readouterr().err
        assert "agents.txt: unchanged, 6 targets" in text
        assert "6 of 6 probed" in text
    found = await statuses("sqlite:///mixed.db", *urls.values())
    assert found == {urls["healthy"]: "active", urls["bare"]: "active"}


async def test_changed_definition_reports_removed_targets_and_the_destination_of_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agents.txt").write_text("http://127.0.0.1:1/a\nhttp://127.0.0.1:1/b\n")
    file = tmp_path / "mixed.yml"
    file.write_text(f"{DEFINITION}results: {{jsonl: seen.jsonl}}\n")
    assert await crawl("mixed.yml", "--once", "--database", "sqlite:///other.db") == 0
    lines = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]
    assert {line["target_url"] for line in lines} == {"http://127.0.0.1:1/a", "http://127.0.0.1:1/b"}
    assert not (tmp_path / "mixed.db").exists()
    file.write_text(DEFINITION.replace("directories: [{file: agents.txt}]", "targets: [http://127.0.0.1:1]"))
    capsys.readouterr()
    assert await crawl("mixed.yml", "--once", "--database", "sqlite:///other.db") == 0
    text = capsys.readouterr().err
    assert re.search(r"agents\.txt: .*: 2 targets", text)
    assert "directories remove agents.txt --database sqlite:///other.db" in text


async def test_unresolved_names_are_reported_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # No server listens there.
    resolver = "resolver: {servers: ['127.0.0.1:9']}\n"
    listed = DEFINITION.replace("directories: [{file: agents.txt}]", "targets: [https://a.example]")
    (tmp_path / "mixed.yml").write_text(listed + resolver)
    assert await crawl("mixed.yml", "--once") == 0
    text = capsys.readouterr().err
    assert "limits.concurrency" in text
    assert "resolver.servers" in text
    assert ": 1 unknown (internal 1)" in text


def linked(link: Path, *, to: str) -> None:
    link.symlink_to(to)


async def test_crawl_has_exclusive_use_of_the_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with mixed_directory(tmp_path), open_local_backend("sqlite:///mixed.db"):
        linked(tmp_path / "link.db", to="mixed.db")
        for database in ("mixed.db", "link.db"):
            assert await crawl("mixed.yml", "--once", "--database", f"sqlite:///{database}") == 3
            text = capsys.readouterr().err
            assert "no other crawl uses" in text


async def test_shards_of_a_killed_crawl_are_claimed_at_once(tmp_path: Path) -> None:
    async with open_local_backend("sqlite:///mixed.db") as home:
        # It is gone without a word, and all shards are still its own for a minute.
        killed = LocalLedger(home.database)
        assert len((await killed.claim("worker-7", 60.0, {})).claims) == SHARDS
    async with open_local_backend("sqlite:///mixed.db") as home:
        next_one = LocalLedger(home.database)
        assert len((await next_one.claim("worker-1", 60.0, {})).claims) == SHARDS


async def test_periodic_work_of_an_endless_crawl_runs(tmp_path: Path) -> None:
    directory = tmp_path / "report"
    report = Report(directory=directory, name="mixed", deadlines=Timeouts(total_seconds=7).deadlines)
    async with open_local_backend("sqlite:///mixed.db", report) as home:
        directory.mkdir()
        jobs = home.jobs()
        assert set(jobs) == {"imports", "pruning", "report"}
        for _, function in jobs.values():
            done = function()
            assert inspect.isawaitable(done)
            await done
    assert "census.html" in files(directory)
    # No pass has reported the directory's name.
    written = (directory / "census.md").read_text()
    assert written.startswith("# Census: mixed\n")
    assert "after 7 s" in written


async def test_shrunken_directory_is_suspended_and_the_command_to_confirm_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mixed.yml").write_text(DEFINITION)
    listed = tmp_path / "agents.txt"
    listed.write_text("".join(f"http://127.0.0.1:1/{number}\n" for number in range(46)))
    assert await crawl("mixed.yml", "--once") == 0
    listed.write_text("http://127.0.0.1:1/1\n")
    capsys.readouterr()
    assert await crawl("mixed.yml", "--once") == 0
    text = capsys.readouterr().err
    assert "agents.txt: held" in text
    assert "directories confirm agents.txt --database sqlite:///mixed.db" in text
    assert "46 of 46 probed" in text


async def test_unreadable_directory_is_a_failure_if_no_target_was_probed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mixed.yml").write_text(DEFINITION)
    (tmp_path / "agents.txt").write_text("<p>back soon</p>\n")
    assert await crawl("mixed.yml", "--once") == 1
    assert "agents.txt: not read" in capsys.readouterr().err


async def test_disk_full_before_the_list_is_read_ends_the_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agents.txt").write_text("http://127.0.0.1:1/a\n")
    definition = definition_of(DEFINITION, tmp_path / "mixed.yml")
    shown = Shown()

    async def full(_database: SqliteDatabase, _function: object) -> None:
        raise StoreUnavailable("database or disk is full")

    async with open_local_backend("sqlite:///mixed.db") as home:
        run = await home.begin_run("mixed", Timeouts().deadlines)
        with monkeypatch.context() as patched:
            patched.setattr(home, "begin_run", AsyncMock(return_value=run))
            patched.setattr(SqliteDatabase, "write", full)
            async with asyncio.timeout(PATIENCE_SECONDS):
                crawled = await Crawl(definition, home, shown, asyncio.Event()).once(processes=1)
    assert ended(crawled, is_once=True) == 1
    assert "agents.txt: not stored: " in "\n".join(shown.lines)


@pytest.mark.parametrize("once", [(), ("--once",)], ids=["watch", "once"])
async def test_missing_list_is_reported_before_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], once: tuple[str, ...]
) -> None:
    (tmp_path / "mixed.yml").write_text(DEFINITION)
    assert await crawl("mixed.yml", *once) == 3
    text = capsys.readouterr().err
    assert "mixed.yml: line" in text
    assert "/directories/0/file: " in text
    assert "agents.txt (No such file" in text
    assert files(tmp_path) == {"mixed.yml"}


async def test_workers_get_no_client_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_SECRET", "client-canary")
    text = DEFINITION.replace("directories: [{file: agents.txt}]", "targets: [http://127.0.0.2:1]") + (
        "credentials: [{name: lab, origin: 'https://lab.example', oauth2: {"
        "token_url: 'https://login.example/', client_id: a, client_secret: {env: CLIENT_SECRET}}}]\n"
    )
    probing = AsyncMock(return_value=True)
    monkeypatch.setattr(run_module, "probe_all", probing)
    async with open_local_backend("sqlite:///mixed.db") as home:
        definition = definition_of(text, tmp_path / "mixed.yml")
        await Crawl(definition, home, Shown(), asyncio.Event()).watch(processes=2)
    secrets = [share.secrets.values for share in probing.await_args_list[0].args[0]]
    assert secrets == [{}, {}]


async def test_resumed_crawl_detects_a_silent_agent(tmp_path: Path) -> None:
    async with mixed_directory(tmp_path) as servers:
        definition = read_definition_file(tmp_path / "mixed.yml")
        stop, shown = asyncio.Event(), Shown()
        async with open_local_backend("sqlite:///mixed.db") as home:
            crawling = asyncio.create_task(Crawl(definition, home, shown, stop).watch(processes=1))
            await shown.until(lambda state: state.results.get(ResultClass.OK, 0) >= 2)
            for path in (CARD_PATH, HEALTH_PATH, "/"):
                servers["healthy"].replies[path] = answer(500)
                servers["bare"].replies[path] = answer(500)
            before = shown.state.results.get(ResultClass.HTTP_ERROR, 0)
            await shown.until(lambda state: state.results.get(ResultClass.HTTP_ERROR, 0) >= before + 2)
            stop.set()
            crawled = await crawling
    assert crawled.is_done
    assert crawled.probed >= 8
    assert shown.state.total is None
    assert sum(shown.state.results.values()) == 6, "a target was counted twice"


async def test_pass_ended_while_its_last_results_arrive_is_complete(tmp_path: Path) -> None:
    stop, shown = asyncio.Event(), Shown()

    async def stop_and_answer(writer: asyncio.StreamWriter, head: str) -> None:
        stop.set()
        await answer(404)(writer, head)

    async with serving({CARD_PATH: stop_and_answer}) as server:
        (tmp_path / "agents.txt").write_text(server.url)
        definition = definition_of(DEFINITION, tmp_path / "mixed.yml")
        async with open_local_backend("sqlite:///mixed.db") as home:
            crawled = await Crawl(definition, home, shown, stop).once(processes=1)
            assert (crawled.is_done, crawled.probed) == (True, 1)
            assert shown.state.total == 1
            again = await home.begin_run("mixed", Timeouts().deadlines)
            assert not again.is_resumed
            await home.drop_run(again)


async def test_pass_killed_after_its_last_result_is_reported_on_restart(tmp_path: Path) -> None:
    async with mixed_directory(tmp_path) as servers:
        definition = read_definition_file(tmp_path / "mixed.yml")
        async with open_local_backend("sqlite:///mixed.db") as home:
            first, shown = Crawl(definition, home, Shown(), asyncio.Event()), Shown()
            begun = await home.begin_run("mixed", Timeouts().deadlines)
            home.end_run = AsyncMock(return_value={})  # type: ignore[method-assign]
            assert (await first.once(processes=1)).probed == 6
            del home.end_run
            asked = {kind: len(server.paths) for kind, server in servers.items()}
            crawled = await Crawl(definition, home, shown, asyncio.Event()).once(processes=1)
            assert (await home.begin_run("mixed", Timeouts().deadlines)).run_id != begun.run_id
    assert (crawled.is_done, crawled.probed) == (True, 0)
    assert {kind: len(server.paths) for kind, server in servers.items()} == asked
    text = [line for line in shown.lines if line.startswith("all targets were probed before")]
    assert len(text) == 1
    assert "3 alive, 3 not alive" in text[0]


async def test_crawl_stopped_before_its_list_was_read_does_not_claim_completeness(
    tmp_path: Path,
) -> None:
    (tmp_path / "agents.txt").write_text("http://127.0.0.1:1/")
    definition = definition_of(DEFINITION, tmp_path / "mixed.yml")
    stop, shown = asyncio.Event(), Shown()
    stop.set()
    before = shown.state
    async with open_local_backend("sqlite:///mixed.db") as home:
        assert not (await Crawl(definition, home, shown, stop).once(processes=1)).is_done
    assert shown.state is before


async def test_reading_a_long_list_shows_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "SHOW_SECONDS", 0.001)
    (tmp_path / "agents.txt").write_text(
        "".join(f"http://127.0.0.1:1/{number}\n" for number in range(20_000))
    )
    definition = definition_of(DEFINITION, tmp_path / "mixed.yml")
    stop, shown = asyncio.Event(), Shown()
    async with open_local_backend("sqlite:///mixed.db") as home:
        crawling = asyncio.create_task(Crawl(definition, home, shown, stop).watch(processes=1))
        await shown.until(lambda _: bool(shown.steps))
        stop.set()
        await crawling
    assert (shown.steps[0].directory, shown.steps[0].doing) == ("agents.txt", "lines read")


async def test_silent_directory_does_not_delay_the_probes_of_other_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "START_READING_SECONDS", 0.5)
    stop, shown = asyncio.Event(), Shown()
    async with serving({"/agents.txt": silence}) as server, open_local_backend("sqlite:///mixed.db") as home:
        text = f"{DEFINITION}targets: [http://127.0.0.1:1/a]\n"
        text = text.replace("{file: agents.txt}", f"{{name: silent, url: {server.url}/agents.txt}}")
        definition = definition_of(text, tmp_path / "mixed.yml")
        crawling = asyncio.create_task(Crawl(definition, home, shown, stop).watch(processes=1))
        await shown.until(lambda state: state.probed > 0)
        stop.set()
        assert (await crawling).is_done
    assert not [line for line in shown.lines if line.startswith("silent: not read")]


async def test_directory_is_read_again_when_due(tmp_path: Path) -> None:
    (tmp_path / "agents.txt").write_text("http://127.0.0.1:1/a\n")
    definition = definition_of(DEFINITION, tmp_path / "mixed.yml")
    source = definition.directories[0].model_copy(update={"refresh_seconds": 1.0})
    definition = definition.model_copy(update={"directories": (source,)})
    stop, shown = asyncio.Event(), Shown()
    async with open_local_backend("sqlite:///mixed.db") as home:
        crawling = asyncio.create_task(Crawl(definition, home, shown, stop).watch(processes=1))
        await shown.until_line("agents.txt: 1 target")
        written = tmp_path / "new.txt"
        written.write_text("http://127.0.0.1:1/a\nhttp://127.0.0.1:1/b\n")
        # A younger file may not be complete yet.
        os.utime(written, (time.time() - 60,) * 2)
        written.replace(tmp_path / "agents.txt")
        await shown.until_line("agents.txt: 2 targets, 1 new, 0 left")
        stop.set()
        await crawling
    # Unchanged facts are not repeated.
    assert len([line for line in shown.lines if "unchanged" in line]) <= 1


async def test_crawl_for_a_registry_stores_agents_there_and_no_local_files(
    tmp_path: Path,
    registry: RegistryServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEYS[Role.PROBER])
    async with mixed_directory(tmp_path) as servers:
        options = ("--registry", registry.url, "--report", "report")
        assert await crawl("mixed.yml", "--once", *options) == 0
        text = capsys.readouterr().err
        assert f"mixed: registry {registry.url}" in text
        assert "6 of 6 probed" in text
        urls = {kind: server.url for kind, server in servers.items()}
    assert files(tmp_path) == {"agents.txt", "mixed.yml", "registry.db", "report"}
    assert "census.json" in files(tmp_path / "report")
    found = await statuses(registry.database_url, *urls.values())
    assert found == {urls["healthy"]: "active", urls["bare"]: "active"}


async def test_refusing_or_silent_registry_is_reported_before_the_first_probe(
    tmp_path: Path,
    registry: RegistryServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "mixed.yml").write_text(f"{DEFINITION}results: {{registry: {registry.url}}}\n")
    (tmp_path / "agents.txt").touch()
    key_file = tmp_path / "key"
    for role in (Role.READER, Role.ENROLL):
        key_file.write_text(KEYS[role])
        assert await crawl("mixed.yml", "--once", "--key-file", str(key_file)) == 1
        text, _, hint = capsys.readouterr().err.partition("hint: ")
        assert "(not_allowed)" in text
        assert {role.value for role in Role} & set(hint.split()) == {"prober", "admin"}
    monkeypatch.delenv(KEY_VARIABLE)
    assert await crawl("mixed.yml", "--once") == 3
    assert "--key-file" in capsys.readouterr().err
    nobody = ("--registry", "http://127.0.0.1:1", "--key-file", str(key_file))
    assert await crawl("mixed.yml", "--once", *nobody) == 2
    assert "no connection to 127.0.0.1:1" in capsys.readouterr().err


async def test_address_of_another_server_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mixed.yml").write_text(DEFINITION)
    (tmp_path / "agents.txt").touch()
    monkeypatch.setenv(KEY_VARIABLE, KEYS[Role.PROBER])
    page = answer(200, b"<title>Files</title>", Content_Type="text/html")
    forbidden = answer(403, b"<title>Login</title>", Content_Type="text/html")
    for replies, text, code in (
        ({}, "HTTP 404", 2),
        ({"/api/v1/directories": page}, "HTTP 200", 2),
        ({"/api/v1/directories": forbidden}, "HTTP 403", 2),
    ):
        async with serving(replies) as server:
            assert await crawl("mixed.yml", "--once", "--registry", server.url) == code
            assert text in capsys.readouterr().err
            assert {head.split()[0] for head in server.heads} == {"GET"}


@pytest.mark.parametrize(
    ("crawled", "mode", "code"),
    [
        (Crawled(is_done=True, probed=5), "once", 0),
        (Crawled(is_done=True, probed=5, failed=("a",)), "once", 5),
        (Crawled(is_done=True, probed=5, failed=("a",)), "watch", 0),
        (Crawled(is_done=True, probed=0, failed=("a",)), "once", 1),
        (Crawled(is_done=False, probed=5), "once", 4),
        (Crawled(is_done=False, probed=0), "watch", 0),
    ],
)
def test_crawl_exit_code_shows_its_result(crawled: Crawled, mode: str, code: int) -> None:
    assert ended(crawled, is_once=mode == "once") == code


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "FILE"),
        (["none.yml"], "none.yml"),
        (["https://me:hunter2@host/list?key=hunter2"], "a file, not a URL"),
        (["mixed.yml", "--registry", "https://registry.example/?key=hunter2"], "registry.example/?..."),
        (["mixed.yml", "--workers", "0"], "--workers"),
        (["mixed.yml", "--database", "mysql://x/y"], "database"),
        (["mixed.yml", "--database", "sqlite:///no/such/place.db"], "place.db"),
        (["mixed.yml", "--database", "sqlite:///a.db", "--registry", "http://127.0.0.1:1"], "--database"),
        (["mixed.yml", "--key-file", "prober.key"], "--registry"),
        (["mixed.yml", "--registry", "http://registry.example"], "https"),
        (["mixed.yml", "--report", "mixed.yml"], "--report"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "mixed.yml").write_text(DEFINITION)
    (tmp_path / "agents.txt").touch()
    monkeypatch.setenv(KEY_VARIABLE, KEYS[Role.PROBER])
    assert main(["crawl", *arguments]) == 3
    complaint = capsys.readouterr().err
    assert text in complaint
    assert "hunter2" not in complaint
    assert complaint.count("\n") == 1


def test_credentials_of_a_file_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "probes.yml").write_text(
        "name: a\ncontact: mailto:me@agent.example\ntargets: [a.example]\n"
        "credentials: [{name: own, origin: 'https://a.example', bearer: {env: NOT_SET}}]\n"
    )
    (tmp_path / "lab.yml").write_text(
        "credentials: [{name: lab, origin: 'https://a.example', bearer: {env: LAB_TOKEN}}]\n"
    )
    arguments = ["crawl", "probes.yml", "--check", "--credential", "lab.yml"]
    assert main(arguments) == 3
    assert "credentials.lab.bearer" in capsys.readouterr().err
    monkeypatch.setenv("LAB_TOKEN", "canary-7e8f9a0b")
    assert main(arguments) == 0


@pytest.mark.parametrize("options", [("--check",), ("--once",), ()])
def test_crawl_of_public_addresses_requires_contact(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.yml").write_text("name: one\ntargets: [agent.example]\n")
    assert main(["crawl", "one.yml", *options]) == 3
    assert "one.yml: contact: expected" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["one.yml"]


def test_definition_is_checked_without_a_probe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mixed.yml"
    (tmp_path / "agents.txt").write_text("agent.example\n")
    (tmp_path / "closed.txt").write_text("a.example\n")
    file.write_text(DEFINITION.replace("opt_out: {", "opt_out: {files: [closed.txt], "))
    before = files(tmp_path)
    assert main(["crawl", str(file), "--check"]) == 0
    assert capsys.readouterr().out.endswith("mixed.yml: mixed is valid\n")
    (tmp_path / "closed.txt").write_text("a.example\nftp://b\n")
    assert main(["crawl", str(file), "--check"]) == 3
    assert "closed.txt, line 2" in capsys.readouterr().err
    (tmp_path / "closed.txt").write_text("a.example\n")
    for prose in (b"hello world foo\n", b"", bytes(range(256)), b'{"type": "object", "properties": {}}'):
        (tmp_path / "agents.txt").write_bytes(prose)
        assert main(["crawl", str(file), "--check"]) == 3
        text = capsys.readouterr()
        assert "the list agents.txt: " in text.err
        assert text.out == ""
    (tmp_path / "agents.txt").write_text("agent.example\n")
    file.write_text(f"{DEFINITION}targets: ['javascript:1']\n")
    assert main(["crawl", str(file), "--check"]) == 0
    text = capsys.readouterr()
    assert text.err.endswith("which only a private network resolves: https://javascript:1/\n")
    assert text.out.endswith("mixed.yml: mixed is valid\n")
    assert files(tmp_path) == before


async def test_crawl_ends_on_signal_although_its_output_is_not_read() -> None:
    def print_line(_text: str) -> None:
        raise BrokenPipeError

    loop = asyncio.get_running_loop()
    found: list[object] = []
    loop.set_exception_handler(lambda _loop, context: found.append(context.get("exception")))
    stop = asyncio.Event()
    with stopped_by_signals(stop, print_line):
        signal.raise_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await stop.wait()
    assert isinstance(found[0], BrokenPipeError)
