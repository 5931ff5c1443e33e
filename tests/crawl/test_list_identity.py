import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.databases import WoundClock, opened

from lifesign.crawl.directory_import import DirectoryImporter
from lifesign.crawl.list_identity import require_same_list
from lifesign.crawl.local_registry import LocalDirectories, LocalRegistry
from lifesign.domain.access.permissions import Role
from lifesign.domain.models.directories import ImportPageRequest
from lifesign.errors import InvalidValue
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.directories import Got
from lifesign.prober.directories.source import WantedDocument
from lifesign.storage.engine.transaction import Database


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with opened("sqlite", tmp_path, WoundClock().now_s) as database:
        yield database


def defined(directory: Path, *sources: dict[str, str], **settings: Any) -> ProbeDefinition:
    given = {"name": "test", "contact": "mailto:tests@agent.example", "directories": sources, **settings}
    return ProbeDefinition.model_validate(given, context={"directory": directory})


async def nobody(wanted: WantedDocument) -> Got:
    raise AssertionError(f"{wanted.url} is asked for")


@pytest.mark.parametrize(
    ("stored", "source", "is_same"),
    [
        ("/lists/agents.txt", {"file": "/lists/agents.txt"}, True),
        ("/lists/agents.txt", {"file": "/other/../lists/agents.txt"}, True),
        ("/lists/agents.txt", {"file": "/other/agents.txt"}, False),
        ("/lists/agents.txt", {"url": "https://agents.txt/", "name": "agents.txt"}, False),
        ("https://a.example/list", {"url": "https://a.example/list", "name": "agents.txt"}, True),
        ("https://a.example/list", {"url": "https://a.example/list?page=2", "name": "agents.txt"}, False),
        ("https://a.example/list", {"file": "/lists/agents.txt"}, False),
        # Another list of that host, and one that stands where hosts have theirs.
        ("https://a.example/other", {"url": "a.example", "name": "agents.txt"}, False),
        # A host alone is asked where domains have their lists.
        ("https://a.example/.well-known/api-catalog", {"url": "a.example", "name": "agents.txt"}, True),
        ("https://b.example/.well-known/x", {"url": "a.example", "name": "agents.txt"}, False),
        (None, {"file": "/lists/agents.txt"}, True),
    ],
)
async def test_list_is_identified_by_name_and_location(
    database: Database, tmp_path: Path, stored: str | None, source: dict[str, str], *, is_same: bool
) -> None:
    lists = LocalDirectories(LocalRegistry(database, Role.ADMIN))
    await lists.put_page(
        "agents.txt", "one", 1, ImportPageRequest(urls=["https://x.example/"], source=stored)
    )
    while (await lists.apply("agents.txt", "one", pages=1)).is_under_way:
        pass
    definition = defined(tmp_path, source)
    if is_same:
        await require_same_list(definition, lists, "here")
    else:
        with pytest.raises(InvalidValue, match="in here"):
            await require_same_list(definition, lists, "here")


class Fleet:
    """Machines that crawl for one registry, each with a directory that has a list and its definition."""

    def __init__(self, root: Path, database: Database) -> None:
        self.lists = LocalDirectories(LocalRegistry(database, Role.ADMIN))
        self._root = root

    def has(self, machine: str, *hosts: str) -> None:
        (self._root / machine).mkdir(exist_ok=True)
        (self._root / machine / "agents.txt").write_text("".join(f"{host}\n" for host in hosts))

    async def crawls(self, machine: str, **settings: Any) -> None:
        definition = defined(self._root / machine, {"file": "agents.txt"}, **settings)
        await require_same_list(definition, self.lists, "there", is_shared=True)
        reading = DirectoryImporter(definition, self.lists, nobody, is_shared=True)
        outcome = await reading.import_directory(definition.directories[0])
        assert not outcome.has_failed

    async def size(self) -> int:
        (record,) = await self.lists.all()
        return record.size


@pytest.fixture
def fleet(tmp_path: Path, database: Database) -> Fleet:
    return Fleet(tmp_path, database)


async def test_registry_refuses_another_list_of_the_same_name(fleet: Fleet) -> None:
    fleet.has("one", "a.example", "b.example", "c.example")
    await fleet.crawls("one")
    fleet.has("two", "a.example", "x.example")
    with pytest.raises(InvalidValue, match=r"\bagents\.txt \(place [0-9a-f]{8}\), ") as refused:
        await fleet.crawls("two")
    # Both have the same name; their places differ.
    assert len(set(re.findall(r"\(place [0-9a-f]{8}\)", str(refused.value)))) == 2
    assert await fleet.size() == 3


async def test_machines_with_copies_of_one_list_do_not_refuse_each_other(fleet: Fleet) -> None:
    fleet.has("one", "a.example", "b.example")
    await fleet.crawls("one")
    # In another order, and with others opted out, it is the same list.
    fleet.has("two", "b.example", "a.example")
    await fleet.crawls("two", opt_out={"hosts": ["nobody.example"]})
    await fleet.crawls("one")


async def test_list_contents_may_change_at_the_same_path(fleet: Fleet) -> None:
    fleet.has("one", "a.example", "b.example")
    await fleet.crawls("one")
    fleet.has("one", "a.example", "c.example", "d.example")
    await fleet.crawls("one")
    assert await fleet.size() == 3


async def test_list_identity_of_a_path_is_equal_on_each_machine(fleet: Fleet, tmp_path: Path) -> None:
    fleet.has("one", "a.example")
    await fleet.crawls("one")
    # Like a restarted container with another list in its image.
    shutil.rmtree(tmp_path / "one")
    fleet.has("one", "b.example", "c.example")
    await fleet.crawls("one")
    assert await fleet.size() == 2


async def test_list_that_is_missing_on_a_machine_is_reported_by_its_import(
    fleet: Fleet, tmp_path: Path
) -> None:
    fleet.has("one", "a.example")
    await fleet.crawls("one")
    definition = defined(tmp_path / "two", {"file": "agents.txt"})
    await require_same_list(definition, fleet.lists, "there", is_shared=True)


async def test_registry_refuses_a_url_in_place_of_a_file(fleet: Fleet, tmp_path: Path) -> None:
    fleet.has("one", "a.example")
    await fleet.crawls("one")
    definition = defined(tmp_path, {"url": "https://a.example/list", "name": "agents.txt"})
    with pytest.raises(InvalidValue):
        await require_same_list(definition, fleet.lists, "there", is_shared=True)
