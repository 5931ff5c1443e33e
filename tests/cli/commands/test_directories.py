import asyncio
import json
from pathlib import Path

import pytest
from tests.support.registry_server import ADMIN_KEY, RegistryServer

from lifesign.cli import main
from lifesign.client import RegistryClient
from lifesign.crawl.backend import open_local_backend
from lifesign.domain.models.directories import ImportPageRequest

MANY = [f"https://a{number}.example/" for number in range(40)]


@pytest.fixture
def database(tmp_path: Path) -> str:
    """The URL of a crawl's database, whose one directory has shrunk."""
    url = f"sqlite:///{tmp_path}/crawl.db"

    async def filled() -> None:
        async with open_local_backend(url) as home:
            for import_id, urls in (("first", MANY), ("second", MANY[:3])):
                await home.lists.put_page(
                    "a-list", import_id, 1, ImportPageRequest(urls=urls, source="a list")
                )
                while (await home.lists.apply("a-list", import_id, pages=1)).is_under_way:
                    pass

    asyncio.run(filled())
    return url


def run(*arguments: str) -> int:
    return main(["directories", *arguments])


def test_suspended_change_is_shown_and_confirmed(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = ("--database", database)
    assert run("list", *place) == 0
    heads, row = capsys.readouterr().out.splitlines()
    assert heads.split() == ["DIRECTORY", "TARGETS", "READ", "FROM", "SUSPENDED"]
    assert row.split()[:2] == ["a-list", "40"]
    assert "a list" in row
    assert "37" in row
    assert run("confirm", "a-list", *place) == 0
    assert capsys.readouterr().out == "a-list: 37 removed, 3 targets left\n"
    assert run("confirm", "a-list", *place) == 1
    assert "nothing of 'a-list' waits" in capsys.readouterr().err
    assert run("remove", "a-list", *place) == 0
    assert capsys.readouterr().out == "a-list: 3 removed, 0 targets left\n"
    assert run("list", "--json", *place) == 0
    (shown,) = json.loads(capsys.readouterr().out)["directories"]
    assert (shown["name"], shown["size"], "suspended" in shown) == ("a-list", 0, False)


def test_directories_of_the_registry_are_listed_without_a_database_option(
    registry: RegistryServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fill() -> None:
        async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
            await client.directories.put("a-list", MANY)
            await client.directories.put("a-list", MANY[:3])

    assert run("list") == 0
    assert capsys.readouterr().out.count("\n") == 1
    asyncio.run(fill())
    assert run("confirm", "a-list") == 0
    assert capsys.readouterr().out == "a-list: 37 removed, 3 targets left\n"
    assert run("confirm", "no-list") == 1
    assert "no-list" in capsys.readouterr().err
    assert run("remove", "a-list") == 0
    assert capsys.readouterr().out == "a-list: 3 removed, 0 targets left\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--database", "sqlite:///none.db"], "none.db"),
        (["list", "--database", "mysql://a/b"], "database"),
        (["confirm"], "NAME"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 3
    complaint = capsys.readouterr().err
    assert message in complaint
    assert complaint.count("\n") == 1


def test_directory_that_lists_no_agent_cannot_be_removed(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("remove", "nobody", "--database", database) == 3
    output = capsys.readouterr().err
    assert ("NAME: " in output, "'nobody'" in output) == (True, True)
