import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.databases import WoundClock, opened
from tests.support.hostile_server import Reply, answer, as_json, serving

from lifesign.client.registry_errors import Conflict
from lifesign.crawl import directory_import as module
from lifesign.crawl.directory_import import DirectoryImporter, ImportOutcome, opt_outs_of
from lifesign.crawl.list_file import QUIET_S
from lifesign.crawl.list_identity import stored_location
from lifesign.crawl.local_registry import LocalDirectories, LocalRegistry
from lifesign.crawl.progress_display import step_text
from lifesign.domain.access.permissions import Role
from lifesign.errors import InvalidValue, LifesignError
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.directories import Got, read_directory
from lifesign.prober.directories.fetching import TIMEOUTS, fetching_with
from lifesign.prober.directories.source import WantedDocument
from lifesign.prober.network.fetch import Fetcher
from lifesign.prober.network.resolver import Resolver
from lifesign.registry.errors import ImportOver, TooMany
from lifesign.storage.engine.transaction import Database


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """Only SQLite: other tests run these functions on PostgreSQL."""
    async with opened("sqlite", tmp_path, WoundClock().now_s) as database:
        yield database


def defined(directory: Path, **settings: Any) -> ProbeDefinition:
    given = {"name": "test", "contact": "mailto:tests@agent.example", **settings}
    return ProbeDefinition.model_validate(given, context={"directory": directory})


async def nobody(wanted: WantedDocument) -> Got:
    raise AssertionError(f"{wanted.url} is asked for")


def importer(database: Database, definition: ProbeDefinition) -> DirectoryImporter:
    return DirectoryImporter(definition, LocalDirectories(LocalRegistry(database, Role.ADMIN)), nobody)


async def read(database: Database, definition: ProbeDefinition) -> ImportOutcome:
    return await importer(database, definition).import_directory(definition.directories[0])


async def sizes(database: Database) -> dict[str, int]:
    records = await LocalDirectories(LocalRegistry(database, Role.ADMIN)).all()
    return {record.name: record.size for record in records}


def write_list(directory: Path, *hosts: str) -> None:
    (directory / "agents.txt").write_text("".join(f"{host}\n" for host in hosts))


@pytest.fixture
def a_list(tmp_path: Path) -> ProbeDefinition:
    return defined(tmp_path, directories=[{"file": "agents.txt"}])


async def test_imported_list_adds_targets_and_reports_skipped_entries(
    database: Database, tmp_path: Path, a_list: ProbeDefinition
) -> None:
    write_list(tmp_path, "a.example", "b.example", "https://a.example/", "https://{tenant}.example")
    outcome = await read(database, a_list)
    assert outcome.text.startswith("agents.txt: 2 targets, 1 listed again; left out: 1 the URL contains")
    assert (outcome.is_suspended, outcome.has_failed) == (False, False)
    assert await sizes(database) == {"agents.txt": 2}


async def test_skipped_entries_are_reported_with_examples(
    database: Database, tmp_path: Path, a_list: ProbeDefinition
) -> None:
    good = [f"{name}.example" for name in "abcdefg"]
    write_list(tmp_path, *good, "one", "two", "three", "http://u:s3cret@h.example/", "i.example:70000")
    outcome = await read(database, a_list)
    assert outcome.text == (
        "agents.txt: 7 targets; left out: 3 neither a URL nor a domain (one, two, …), "
        "1 a URL with credentials (http://...@h.example/), 1 a port out of range (i.example:70000)"
    )


async def test_progress_of_an_import_is_shown(
    database: Database, tmp_path: Path, a_list: ProbeDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PAGE_URLS", 2)
    write_list(tmp_path, "a.example", "b.example", "c.example")
    reading = importer(database, a_list)
    steps: list[str] = []

    def watch(function: str) -> None:
        asked = getattr(LocalDirectories, function)

        async def watched(*arguments: Any, **named: Any) -> Any:
            steps.append("" if reading.step is None else step_text(reading.step))
            return await asked(*arguments, **named)

        monkeypatch.setattr(LocalDirectories, function, watched)

    watch("put_page")
    watch("apply")
    await reading.import_directory(a_list.directories[0])
    assert steps[:3] == [
        "agents.txt: 0 lines read",
        "agents.txt: 2 of 3 handed over",
        "agents.txt: 3 of 3 handed over",
    ]
    assert steps[3:], "the import took a single batch"
    assert all(step.endswith(" of 3 new targets stored") for step in steps[3:])
    assert reading.step is None


async def test_only_a_replaced_import_is_no_failure(
    database: Database, tmp_path: Path, a_list: ProbeDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_list(tmp_path, "a.example")
    for error, has_failed in (
        (ImportOver("one", "dropped"), False),
        (Conflict("it is dropped", status=409, code="import_over"), False),
        (TooMany("waiting pages", 600), True),
        (Conflict("too many pages", status=409, code="too_many"), True),
    ):

        async def refuse(*_: object, error: LifesignError = error, **_named: object) -> None:
            raise error

        monkeypatch.setattr(LocalDirectories, "put_page", refuse)
        outcome = await read(database, a_list)
        assert outcome.has_failed is has_failed
        assert (str(error) in outcome.text) is has_failed


async def test_path_of_a_local_file_is_not_published(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_list(tmp_path, "a.example")
    definition = defined(Path(), directories=[{"file": "agents.txt"}])
    lists = LocalDirectories(LocalRegistry(database, Role.ADMIN))
    shared = stored_location("agents.txt", definition.directories[0], is_shared=True)
    assert str(tmp_path) not in shared
    for is_shared, place in ((True, shared), (False, str(tmp_path / "agents.txt"))):
        reading = DirectoryImporter(definition, lists, nobody, is_shared=is_shared)
        await reading.import_directory(definition.directories[0])
        (record,) = await lists.all()
        assert record.applied is not None
        assert record.applied.source == place


@pytest.mark.parametrize("networks", [[], ["127.0.0.0/8"]])
async def test_loopback_targets_are_reported_only_if_not_requested(
    networks: list[str], database: Database, tmp_path: Path
) -> None:
    write_list(tmp_path, "http://127.0.0.1:1/", "http://localhost:1/")
    source = {"file": "agents.txt"}
    outcome = await read(database, defined(tmp_path, directories=[source], networks={"allow": networks}))
    assert ("this machine" in outcome.text) is (not networks)


async def test_unchanged_list_is_not_sent_again(
    database: Database, tmp_path: Path, a_list: ProbeDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_list(tmp_path, "a.example", "b.example", "b.example", "mailto:c@d.example")
    await read(database, a_list)

    async def handed_over(*_: object, **__: object) -> None:
        raise AssertionError("it is handed over again")

    monkeypatch.setattr(LocalDirectories, "put_page", handed_over)
    message = (await read(database, a_list)).text
    assert message.startswith("agents.txt: unchanged, 2 targets, 1 ")
    assert message.endswith(" (...@d.example)")


async def test_added_and_removed_targets_are_reported(
    database: Database, tmp_path: Path, a_list: ProbeDefinition
) -> None:
    write_list(tmp_path, "a.example", "b.example", "c.example")
    await read(database, a_list)
    write_list(tmp_path, "a.example", "b.example", "d.example", "e.example")
    assert (await read(database, a_list)).text == "agents.txt: 4 targets, 2 new, 1 left"


async def test_list_that_shrinks_by_more_than_half_is_suspended_until_it_recovers(
    database: Database, tmp_path: Path, a_list: ProbeDefinition
) -> None:
    hosts = [f"a{number}.example" for number in range(40)]
    write_list(tmp_path, *hosts)
    await read(database, a_list)
    write_list(tmp_path, *hosts[:5])
    for _ in range(2):
        # It is not handed over again, and still held.
        outcome = await read(database, a_list)
        assert outcome.is_suspended
        assert "held" in outcome.text
        assert await sizes(database) == {"agents.txt": 40}
    write_list(tmp_path, *hosts)
    assert not (await read(database, a_list)).is_suspended
    assert await sizes(database) == {"agents.txt": 40}


async def test_suspended_list_does_not_grow_without_bound(database: Database, tmp_path: Path) -> None:
    definition = defined(tmp_path, directories=[{"file": "agents.txt"}], limits={"max_targets": 30})
    outcomes = []
    for reading in range(4):
        write_list(tmp_path, *(f"a{reading}-{number}.example" for number in range(20)))
        outcomes.append(await read(database, definition))
    assert [outcome.is_suspended for outcome in outcomes] == [False, True, False, False]
    assert [outcome.has_failed for outcome in outcomes] == [False, False, True, True]
    assert await sizes(database) == {"agents.txt": 40}


async def test_list_with_allowed_shrinking_removes_targets(database: Database, tmp_path: Path) -> None:
    definition = defined(tmp_path, directories=[{"file": "agents.txt", "allow_shrink": True}])
    write_list(tmp_path, *(f"a{number}.example" for number in range(40)))
    await read(database, definition)
    write_list(tmp_path, "a1.example")
    assert (await read(database, definition)).text == "agents.txt: 1 target, 0 new, 39 left"


async def test_list_file_that_is_still_written_retires_no_target(
    database: Database, tmp_path: Path, a_list: ProbeDefinition
) -> None:
    write_list(tmp_path, "a.example", "b.example", "c.example")
    lists = LocalDirectories(LocalRegistry(database, Role.ADMIN))
    reading = DirectoryImporter(a_list, lists, nobody, is_continuous=True)
    source = a_list.directories[0]
    assert not (await reading.import_directory(source)).has_failed

    file = tmp_path / "agents.txt"
    file.write_text("a.example\nb.exa")
    assert (await reading.import_directory(source, is_again=True)).has_failed
    assert await sizes(database) == {"agents.txt": 3}

    write_list(tmp_path, "a.example", "b.example")
    os.utime(file, (time.time() - QUIET_S,) * 2)
    assert not (await reading.import_directory(source, is_again=True)).has_failed
    assert await sizes(database) == {"agents.txt": 2}


async def test_mcp_servers_are_targets_only_if_configured(database: Database, tmp_path: Path) -> None:
    servers = {"servers": [{"server": {"remotes": [{"url": "https://m.example/mcp"}]}}], "metadata": {}}
    (tmp_path / "servers.json").write_text(json.dumps(servers))
    for settings, size in (({"kinds": ["a2a"]}, 0), ({"kinds": ["mcp"]}, 1), ({}, 1)):
        definition = defined(tmp_path, directories=[{"file": "servers.json", **settings}])
        await read(database, definition)
        assert await sizes(database) == {"servers.json": size}


async def test_unreadable_list_keeps_its_known_targets(
    database: Database, tmp_path: Path, a_list: ProbeDefinition
) -> None:
    outcome = await read(database, a_list)
    assert outcome.has_failed
    assert "agents.txt: not read" in outcome.text
    write_list(tmp_path, "a.example")
    await read(database, a_list)
    (tmp_path / "agents.txt").unlink()
    outcome = await read(database, a_list)
    assert outcome.text.endswith("listed before are kept (1 target)")
    assert await sizes(database) == {"agents.txt": 1}


async def test_opted_out_entry_is_removed_from_an_unchanged_list(
    database: Database, tmp_path: Path, a_list: ProbeDefinition
) -> None:
    write_list(tmp_path, "a.example", "b.example", "sub.c.example")
    await read(database, a_list)
    (tmp_path / "opted-out.txt").write_text("# please\n.c.example\n")
    stricter = defined(
        tmp_path,
        directories=[{"file": "agents.txt"}],
        opt_out={"hosts": ["b.example"], "files": ["opted-out.txt"]},
    )
    outcome = await read(database, stricter)
    assert outcome.text == "agents.txt: 1 target, 0 new, 2 left, 2 opted out"


def test_unreadable_opt_out_list_stops_the_crawl(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="a readable file"):
        opt_outs_of(defined(tmp_path, targets=["a.example"], opt_out={"files": ["none.txt"]}))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidValue, match="no regular file"):
        opt_outs_of(defined(tmp_path, targets=["a.example"], opt_out={"files": ["pipe"]}))
    (tmp_path / "wrong.txt").write_text("a.example\nftp://b\n")
    with pytest.raises(InvalidValue, match="line 2"):
        opt_outs_of(defined(tmp_path, targets=["a.example"], opt_out={"files": ["wrong.txt"]}))


async def test_targets_of_the_definition_change_with_it(database: Database, tmp_path: Path) -> None:
    first = importer(database, defined(tmp_path, targets=["a.example", "b.example"]))
    assert (
        await first.import_inline() or ImportOutcome(directory="", text="")
    ).text == "test.Targets: 2 targets"
    again = await first.import_inline()
    assert again is not None
    assert again.text == "test.Targets: unchanged, 2 targets"
    fewer = importer(database, defined(tmp_path, targets=["b.example"]))
    await fewer.import_inline()
    assert await sizes(database) == {"test.Targets": 1}
    assert await fewer.unnamed() == []


async def test_unusual_targets_of_the_definition_are_reported(database: Database, tmp_path: Path) -> None:
    odd = importer(database, defined(tmp_path, targets=["javascript:1", "a.example"]))
    outcome = await odd.import_inline()
    assert outcome is not None
    assert outcome.text.startswith("test.Targets: 2 targets; 1 ")
    assert outcome.text.endswith(": https://javascript:1/")


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.txt", ""), ("a.txt", "# no entries\n"), ("a.csv", "url,name\n"), ("a.json", "[]"), ("a.json", "{}")],
)
async def test_empty_list_removes_no_target_in_any_format(
    database: Database, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text('["a.example"]' if name.endswith("json") else "url,name\na.example,A\n")
    listed = defined(tmp_path, directories=[{"file": name, "allow_shrink": True}])
    assert (await read(database, listed)).text == f"{name}: 1 target"
    (tmp_path / name).write_text(text)
    outcome = await read(database, listed)
    assert outcome.has_failed
    assert "broken export; the targets that it listed before are kept (1 target)" in outcome.text


async def test_directory_missing_from_the_definition_is_reported(
    database: Database, tmp_path: Path, a_list: ProbeDefinition
) -> None:
    write_list(tmp_path, "a.example")
    await read(database, a_list)
    other = importer(database, defined(tmp_path, targets=["b.example"]))
    assert await other.import_inline() is not None
    assert [record.name for record in await other.unnamed()] == ["agents.txt"]
    # An empty directory needs no import.
    write_list(tmp_path)
    (tmp_path / "agents.txt").write_text("[]")
    assert await importer(database, a_list).import_inline() is None


async def test_long_list_is_imported_in_pages(
    database: Database, tmp_path: Path, a_list: ProbeDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PAGE_URLS", 7)
    write_list(tmp_path, *(f"a{number}.example" for number in range(20)))
    assert (await read(database, a_list)).text == "agents.txt: 20 targets"


async def test_all_directories_together_list_no_more_than_the_definition_allows(
    database: Database, tmp_path: Path
) -> None:
    (tmp_path / "few.txt").write_text("a.example\nb.example\n")
    write_list(tmp_path, *(f"a{number}.example" for number in range(9)))
    directories = [{"file": "few.txt"}, {"file": "agents.txt"}]
    definition = defined(tmp_path, directories=directories, limits={"max_targets": 10})
    reading = importer(database, definition)
    assert not (await reading.import_directory(definition.directories[0])).has_failed
    outcome = await reading.import_directory(definition.directories[1])
    assert outcome.has_failed
    assert "8" in outcome.text
    assert await sizes(database) == {"few.txt": 2}


async def test_directory_at_a_url_is_requested_conditionally(database: Database, tmp_path: Path) -> None:
    listed = answer(200, b'["https://a.example"]', Content_Type="application/json", ETag='"one"')
    replies: dict[str, Reply] = {"/list.json": listed}
    (tmp_path / "list.key").touch(0o600)
    (tmp_path / "list.key").write_text("canary-of-the-list\n")
    async with serving(replies) as server, Resolver() as resolver:
        definition = defined(
            tmp_path,
            directories=[{"url": f"{server.url}/list.json", "name": "there", "key_file": "list.key"}],
            networks={"allow": ["127.0.0.0/8"]},
        )
        async with Fetcher(
            timeouts=TIMEOUTS,
            networks=definition.networks_allowed,
            user_agent=definition.user_agent,
            resolver=resolver,
        ) as fetcher:
            lists = LocalDirectories(LocalRegistry(database, Role.ADMIN))
            reading = DirectoryImporter(definition, lists, fetching_with(fetcher))
            source = definition.directories[0]
            assert (await reading.import_directory(source)).text == "there: 1 target"
            server.replies["/list.json"] = answer(304)
            assert (await reading.import_directory(source)).text == "there: unchanged, 1 target"
            assert server.asked("/list.json")["if-none-match"] == '"one"'
            assert server.asked("/list.json")["authorization"] == "Bearer canary-of-the-list"
            server.replies["/list.json"] = as_json({"nothing": "here"})
            assert (await reading.import_directory(source)).has_failed
            (tmp_path / "list.key").unlink()
            with pytest.raises(InvalidValue, match=r"list\.key"):
                await reading.import_directory(source)
            outcome = await reading.import_directory(source, is_again=True)
            assert outcome.has_failed
            assert outcome.text.startswith("there: not read: key_file: ")
            assert "1 target" in outcome.text


async def test_directories_that_are_read_at_once_share_the_limit_on_targets(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["one.txt", "two.txt"]
    for name in names:
        (tmp_path / name).write_text(f"a.{name}.example\nb.{name}.example\n")
    definition = defined(tmp_path, directories=[{"file": name} for name in names], limits={"max_targets": 3})
    both_read = asyncio.Barrier(2)

    async def read(*arguments: Any, **named: Any) -> Any:
        found = await read_directory(*arguments, **named)
        await both_read.wait()
        return found

    monkeypatch.setattr(module, "read_directory", read)
    reading = importer(database, definition)
    outcomes = await asyncio.gather(*map(reading.import_directory, definition.directories))
    assert sorted(outcome.has_failed for outcome in outcomes) == [False, True]
    assert sum((await sizes(database)).values()) == 2


async def test_unreadable_nested_catalog_removes_no_target(database: Database, tmp_path: Path) -> None:
    def catalog(*entries: tuple[str, str]) -> Reply:
        items = [{"identifier": url, "type": f"application/{kind}+json", "url": url} for kind, url in entries]
        return as_json({"specVersion": "1.0", "entries": items})

    def agent(name: str) -> tuple[str, str]:
        return ("a2a-agent-card", f"https://{name}.example/")

    nested = ("ai-catalog", "/nested.json")
    replies = {
        "/list.json": catalog(agent("a"), agent("b"), nested),
        "/nested.json": catalog(agent("c")),
    }
    async with serving(replies) as server, Resolver() as resolver:
        definition = defined(
            tmp_path,
            directories=[{"url": f"{server.url}/list.json", "name": "there"}],
            networks={"allow": ["127.0.0.0/8"]},
            limits={"max_targets": 6},
        )
        async with Fetcher(
            timeouts=TIMEOUTS,
            networks=definition.networks_allowed,
            user_agent=definition.user_agent,
            resolver=resolver,
        ) as fetcher:
            lists = LocalDirectories(LocalRegistry(database, Role.ADMIN))
            reading = DirectoryImporter(definition, lists, fetching_with(fetcher))

            async def read_again() -> str:
                return (await reading.import_directory(definition.directories[0])).text

            assert await read_again() == "there: 3 targets"
            server.replies["/nested.json"] = answer(503, Retry_After="600")
            server.replies["/list.json"] = catalog(agent("a"), agent("d"), nested)
            text = await read_again()
            assert text.startswith("there: 4 targets, 1 new, 0 left; no target was removed: 1 document")
            assert f"{server.url}/nested.json: HTTP 503" in text
            server.replies["/list.json"] = catalog(agent("e"), agent("f"), agent("g"), nested)
            assert "not read: 1 document" in await read_again()
            server.replies["/nested.json"] = catalog(agent("c"))
            assert await read_again() == "there: 4 targets, 3 new, 3 left"


async def test_empty_key_file_of_a_directory_is_refused(database: Database, tmp_path: Path) -> None:
    (tmp_path / "list.key").touch(0o600)
    source = {"url": "https://a.example/list.json", "key_file": "list.key"}
    with pytest.raises(InvalidValue, match=r"list\.key"):
        await read(database, defined(tmp_path, directories=[source]))
