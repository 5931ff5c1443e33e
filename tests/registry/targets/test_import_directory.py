import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import select
from tests.support.databases import WoundClock
from tests.support.directory_api import DIRECTORIES, apply, feed, put, upload, urls_in
from tests.support.registry_api import RegistryApi
from tests.support.sql_statements import recorded_statements

from lifesign.domain.access.permissions import Role
from lifesign.domain.lifecycle.verdict import DecidingEvidence
from lifesign.domain.models.agents import DeclaredAgent
from lifesign.domain.models.base import moment
from lifesign.domain.targets.target import host_of, shard_of, target_id
from lifesign.registry.agents.register_agent import add_agent
from lifesign.registry.events.verify_events import verify_log
from lifesign.registry.targets import import_directory, replace_listing
from lifesign.storage.engine.table_definitions import targets
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.targets import target_rows


def urls(*numbers: int) -> list[str]:
    return [f"https://agent-{number}.example/" for number in numbers]


def shards(*numbers: int) -> set[int]:
    return {shard_of(host_of(url)) for url in urls(*numbers)}


async def listed(api: RegistryApi, *numbers: int) -> list[str]:
    """Return those of these URLs that are to be probed."""
    return await urls_in(api, *shards(*numbers))


async def directory(api: RegistryApi, name: str = "dir") -> dict[str, Any]:
    answer = await api.ask("GET", f"{DIRECTORIES}/{name}", key=Role.READER)
    assert answer.status == 200, answer.body
    return dict(answer.json())


async def confirm(api: RegistryApi, name: str = "dir", key: Role = Role.COORDINATOR) -> Any:
    return await api.ask("POST", f"{DIRECTORIES}/{name}/confirm", key=key)


async def see_alive(api: RegistryApi, clock: WoundClock, url: str) -> None:
    clock.advance(1)
    seen = {
        "target_url": url,
        "observed_at": moment(clock.at_s).isoformat(),
        "transport": {"result": "ok"},
    }
    answer = await api.report(seen)
    assert answer.json()["results"][0]["outcome"] == "accepted"


@pytest.mark.both_databases
async def test_listed_targets_are_to_be_probed(api: RegistryApi) -> None:
    record = await put(
        api, "dir", "one", urls(1, 2), urls(3), source="https://dir.example/list", etag='W/"7"'
    )
    assert (record["state"], record["added"], record["removed"], record["received"]) == ("applied", 3, 0, 3)
    assert await listed(api, 1, 2, 3) == urls(1, 2, 3)
    shown = await directory(api)
    assert (shown["size"], shown["applied"]["source"]) == (3, "https://dir.example/list")
    assert shown["applied"]["etag"] == 'W/"7"'
    assert "suspended" not in shown
    listing = await api.ask("GET", DIRECTORIES, key=Role.READER)
    assert listing.json() == {"directories": [shown]}
    (event,) = await api.events(type="directory.applied")
    assert event["payload"] == {"directory": "dir", "listed": 3, "added": 3, "removed": 0}


@pytest.mark.both_databases
async def test_list_of_directories_takes_as_many_statements_for_ten_as_for_one(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = recorded_statements(monkeypatch, api.database, "read")
    taken, lists = [], []
    for number in range(10):
        await put(api, f"dir-{number}", "one", urls(*range(20)))
        await put(api, f"dir-{number}", "two", urls(1))
        statements.clear()
        answer = await api.ask("GET", DIRECTORIES, key=Role.READER)
        taken.append(len(statements))
        lists.append(answer.json()["directories"])
    assert taken[0] == taken[-1]
    assert [
        (one["name"], one["applied"]["import_id"], one["suspended"]["import_id"]) for one in lists[-1]
    ] == [(f"dir-{number}", "one", "two") for number in range(10)]


async def test_incomplete_import_is_not_applied(api: RegistryApi) -> None:
    await upload(api, "dir", "one", urls(1), urls(2))
    assert await listed(api, 1, 2) == []
    answer = await api.ask("POST", f"{DIRECTORIES}/dir/imports/one/apply", {"pages": 3}, key=Role.PROBER)
    assert (answer.status, answer.json()["error"]["details"]["faults"][0]["name"]) == (422, "pages_missing")
    assert await listed(api, 1, 2) == []


async def test_imported_urls_are_normalised_counted_and_refused_with_reasons(api: RegistryApi) -> None:
    given = ["AGENT-1.example", "https://agent-1.example:443/", *urls(2), *urls(2), "ftp://a.example", "{x}"]
    record = await put(api, "dir", "one", given, urls(1, 3))
    assert (record["received"], record["duplicates"], record["added"]) == (8, 3, 3)
    assert sum(record["refused"].values()) == 2
    assert await listed(api, 1, 2, 3) == urls(1, 2, 3)


@pytest.mark.both_databases
async def test_reasons_of_refusals_are_bounded(api: RegistryApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_directory, "MAX_REASONS", 1)
    record = await put(api, "dir", "one", ["ftp://a.example", "{x}", "https://a b/", *urls(1)])
    assert sum(record["refused"].values()) == 3
    assert len(record["refused"]) == 2
    assert "other" in record["refused"]


@pytest.mark.both_databases
async def test_repeated_import_page_counts_once(api: RegistryApi) -> None:
    await upload(api, "dir", "one", urls(1, 2))
    record = await upload(api, "dir", "one", urls(1, 2))
    assert (record["received"], record["pages"]) == (2, 1)


async def test_unlisted_target_ends_and_its_agent_is_deregistered(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "dir", "one", urls(*range(12)))
    await see_alive(api, clock, urls(1)[0])
    version = (await feed(api, next(iter(shards(1)))))["version"]
    record = await put(api, "dir", "two", urls(0, *range(3, 14)))
    assert (record["state"], record["added"], record["removed"]) == ("applied", 2, 2)
    assert await listed(api, 1, 2, 12) == urls(12)
    changes = await feed(api, next(iter(shards(1))), version)
    assert changes["gone"] == [target_id(urls(1)[0])]
    agent = await api.record(target_id(urls(1)[0]))
    assert (agent["status"], agent["reason"]) == ("deregistered", "deregistered")
    assert agent["explanation"].split()[0] == "dir"
    report = await api.database.read(verify_log)
    assert report.is_good, report


async def test_unlisted_target_ends_although_an_agent_names_the_same_card(
    api: RegistryApi, clock: WoundClock
) -> None:
    (url,) = urls(1)
    await api.register("agent-1", monitoring="probe", card_url=url)
    await put(api, "dir", "one", urls(1))
    await see_alive(api, clock, url)
    await put(api, "dir", "two", [])
    assert (await api.record(target_id(url)))["status"] == "deregistered"
    assert (await api.record("agent-1"))["status"] == "active"


async def test_relisted_target_is_probed_and_returns_with_a_liveness_signal(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "dir", "one", urls(1, 2))
    await see_alive(api, clock, urls(1)[0])
    await put(api, "dir", "two", urls(2))
    await put(api, "dir", "three", urls(1, 2))
    assert await listed(api, 1) == urls(1)
    agent_id = target_id(urls(1)[0])
    assert (await api.record(agent_id))["status"] == "deregistered"
    await see_alive(api, clock, urls(1)[0])
    agent = await api.record(agent_id)
    assert (agent["status"], agent["incarnation"]) == ("active", 2)


async def test_removed_target_is_not_probed_although_its_directory_lists_it(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "dir", "one", urls(1))
    await see_alive(api, clock, urls(1)[0])
    assert (await api.ask("DELETE", f"/api/v1/agents/{target_id(urls(1)[0])}")).status == 204
    assert await listed(api, 1) == []
    await put(api, "dir", "two", urls(1, 2))
    assert await listed(api, 1, 2) == urls(2)


async def test_target_is_kept_while_any_directory_lists_it(api: RegistryApi) -> None:
    await put(api, "one", "a", urls(1, 2))
    await put(api, "two", "a", urls(2, 3))
    await put(api, "one", "b", urls(1))
    assert await listed(api, 1, 2, 3) == urls(1, 2, 3)
    await put(api, "two", "b", urls(3))
    assert await listed(api, 1, 2, 3) == urls(1, 3)
    assert [(await directory(api, name))["size"] for name in ("one", "two")] == [1, 1]


async def test_directory_that_shrinks_by_half_is_suspended_until_confirmed(
    api: RegistryApi,
) -> None:
    await put(api, "dir", "one", urls(*range(20)))
    record = await put(api, "dir", "two", urls(*range(9), 30))
    assert (record["state"], record["added"], record["removed"]) == ("suspended", 1, 11)
    assert "11 of 20" in record["explanation"]
    assert len(await listed(api, *range(20), 30)) == 21
    assert (await directory(api))["suspended"]["import_id"] == "two"
    assert (await confirm(api, key=Role.PROBER)).status == 403
    answer = await confirm(api)
    assert (answer.status, answer.json()["state"], answer.json()["removed"]) == (200, "applied", 11)
    assert await listed(api, *range(20), 30) == sorted(urls(*range(9), 30))
    shown = await directory(api)
    assert (shown["size"], shown["applied"]["import_id"]) == (10, "two")
    assert "suspended" not in shown
    kinds = [event["type"] for event in await api.events() if event["type"].startswith("directory.")]
    assert kinds == ["directory.applied", "directory.suspended", "directory.confirmed", "directory.applied"]
    again = await confirm(api)
    assert (again.status, again.json()["error"]["code"]) == (409, "nothing_held")


@pytest.mark.both_databases
async def test_incomplete_list_adds_targets_and_removes_none(api: RegistryApi) -> None:
    await put(api, "dir", "one", urls(*range(20)))
    record = await put(api, "dir", "two", urls(0, 20), keep_missing=True)
    assert [record[member] for member in ("state", "added", "removed")] == ["applied", 1, 0]
    assert (await directory(api))["size"] == 21
    assert await listed(api, *range(21)) == sorted(urls(*range(21)))
    record = await put(api, "dir", "three", urls(*range(15)))
    assert [record[member] for member in ("state", "added", "removed")] == ["applied", 0, 6]


async def test_directory_that_may_shrink_is_not_suspended(api: RegistryApi) -> None:
    await put(api, "dir", "one", urls(*range(20)))
    record = await put(api, "dir", "two", urls(1), allow_shrink=True)
    assert (record["state"], record["removed"]) == ("applied", 19)


async def _put_with(
    api: RegistryApi, key: str, import_id: str, listed_urls: list[str], **members: object
) -> dict[str, Any]:
    """Import a list of one page with this key."""
    path = f"{DIRECTORIES}/dir/imports/{import_id}"
    await api.ask("PUT", f"{path}/pages/1", {"urls": listed_urls, **members}, key=key)
    # The list is added, its missing entries are removed, and the record is read.
    answers = [await api.ask("POST", f"{path}/apply", {"pages": 1}, key=key) for _ in range(3)]
    return dict(answers[-1].json())


async def _new_key(api: RegistryApi) -> tuple[str, str]:
    made = (await api.ask("POST", "/api/v1/keys", {"role": "prober", "name": "other"})).json()
    return made["key"], made["key_id"]


@pytest.mark.both_databases
async def test_prober_key_removes_nothing_from_the_directory_of_another(api: RegistryApi) -> None:
    await put(api, "dir", "one", urls(*range(20)))
    other, key_id = await _new_key(api)
    for import_id, left in (("none", []), ("half", urls(*range(10))), ("most", urls(*range(19)))):
        record = await _put_with(api, other, import_id, left, allow_shrink=True)
        assert (record["state"], record["removed"]) == ("suspended", 20 - len(left))
        assert len(await listed(api, *range(20))) == 20
    # Another key may add targets, and the owner may still remove targets.
    assert (await _put_with(api, other, "more", urls(*range(21))))["state"] == "applied"
    assert (await put(api, "dir", "two", urls(*range(19))))["state"] == "applied"
    # After a confirmation, the directory belongs to the key that was confirmed, and to its successors.
    assert (await _put_with(api, other, "less", urls(*range(18))))["state"] == "suspended"
    assert (await confirm(api)).json()["state"] == "applied"
    rotated = (await api.ask("POST", f"/api/v1/keys/{key_id}/rotate", {})).json()
    assert (await _put_with(api, rotated["key"], "last", urls(*range(17))))["state"] == "applied"
    assert (await put(api, "dir", "three", urls(*range(16))))["state"] == "suspended"


@pytest.mark.both_databases
async def test_prober_key_changes_no_kind_in_the_directory_of_another(api: RegistryApi) -> None:
    await put(api, "dir", "one", urls(1, 2), kind="a2a")
    other, _ = await _new_key(api)
    path = f"{DIRECTORIES}/theirs/imports/one"
    await api.ask("PUT", f"{path}/pages/1", {"urls": urls(1, 3), "kind": "a2a"}, key=other)
    for name, import_id in (("dir", "kinds"), ("theirs", "two")):
        path = f"{DIRECTORIES}/{name}/imports/{import_id}"
        await api.ask("PUT", f"{path}/pages/1", {"urls": urls(1, 2, 3), "kind": "mcp"}, key=other)
        await api.ask("POST", f"{path}/apply", {"pages": 1}, key=other)

    def kinds(transaction: Transaction) -> list[str]:
        wanted = select(targets.c.kind).where(targets.c.subject_id.in_(map(target_id, urls(1, 2, 3))))
        return sorted(transaction.connection.scalars(wanted))

    # The other key's own list disputes the kind; in the directory of the first key, it changes none.
    assert await api.database.read(kinds) == ["disputed", "disputed", "mcp"]
    path = f"{DIRECTORIES}/theirs/imports/end"
    await api.ask("PUT", f"{path}/pages/1", {"urls": urls(3), "kind": "mcp", "allow_shrink": True}, key=other)
    for _ in range(2):
        await api.ask("POST", f"{path}/apply", {"pages": 1}, key=other)
    assert await api.database.read(kinds) == ["a2a", "a2a", "mcp"]


@pytest.mark.both_databases
async def test_recovered_list_replaces_a_suspended_one(api: RegistryApi) -> None:
    await put(api, "dir", "one", urls(*range(20)))
    await put(api, "dir", "two", urls(1))
    record = await put(api, "dir", "three", urls(*range(18)))
    assert (record["state"], record["removed"]) == ("applied", 2)
    assert (await confirm(api)).status == 409
    assert (await directory(api))["size"] == 18


@pytest.mark.both_databases
async def test_later_import_replaces_an_unfinished_one(api: RegistryApi) -> None:
    await upload(api, "dir", "early", urls(1))
    await put(api, "dir", "late", urls(2))
    answer = await api.ask(
        "PUT", f"{DIRECTORIES}/dir/imports/early/pages/2", {"urls": urls(3)}, key=Role.PROBER
    )
    assert (answer.status, answer.json()["error"]["code"]) == (409, "import_over")
    assert answer.json()["error"]["details"]["state"] == "dropped"
    assert await listed(api, 1, 2, 3) == urls(2)


async def test_replaced_import_is_not_applied(api: RegistryApi) -> None:
    """Uploaded first, and to be applied last."""
    await upload(api, "dir", "early", urls(1))
    await upload(api, "dir", "late", urls(2))
    await apply(api, "dir", "late", 1)
    path = f"{DIRECTORIES}/dir/imports/early/apply"
    answer = await api.ask("POST", path, {"pages": 1}, key=Role.PROBER)
    assert answer.json()["state"] == "dropped"
    assert await listed(api, 1, 2) == urls(2)


@pytest.mark.both_databases
async def test_abandoned_import_is_continued_by_the_server(
    api: RegistryApi, clock: WoundClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replace_listing, "REMOVED_AT_ONCE", 3)
    await put(api, "dir", "one", urls(*range(20)))
    await put(api, "dir", "two", urls(*range(8)))
    assert (await confirm(api)).json()["state"] == "removing"
    steps = 0
    while await api.database.write(lambda transaction: replace_listing.finish_one(transaction, "dir", "two")):
        steps += 1
    assert steps >= 3
    assert (await directory(api))["size"] == 8
    assert await listed(api, *range(20)) == sorted(urls(*range(8)))


@pytest.mark.both_databases
async def test_registered_agent_stays_when_its_directory_no_longer_lists_it(api: RegistryApi) -> None:
    await put(api, "dir", "one", urls(1, 2))
    (url,) = urls(1)

    def register(transaction: Transaction) -> None:
        # Older versions allowed such ids.
        version = target_rows.next_version(transaction)
        target_rows.enter(transaction, target_id(url), url, version)
        body = DeclaredAgent(monitoring=DecidingEvidence.PROBE, card_url=url)
        add_agent(transaction, target_id(url), body, "key:enroll")

    await api.database.write(register)
    await put(api, "dir", "two", urls(2))
    assert await listed(api, 1) == urls(1)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("dir/imports/one/pages/0", {"urls": []}),
        ("dir/imports/one/pages/511", {"urls": []}),
        ("dir/imports/one/pages/x", {"urls": []}),
        ("d%20r/imports/one/pages/1", {"urls": []}),
        ("dir/imports/o%20ne/pages/1", {"urls": []}),
        ("dir/imports/one/pages/1", {"urls": ["a"] * 4_001}),
        ("dir/imports/one/pages/1", {"urls": ["a" * 4097]}),
        ("dir/imports/one/pages/1", {"urls": [], "etag": "a\nb"}),
        ("dir/imports/one/pages/1", {}),
    ],
)
async def test_invalid_page_is_refused(api: RegistryApi, path: str, body: dict[str, Any]) -> None:
    answer = await api.ask("PUT", f"{DIRECTORIES}/{path.replace('%20', ' ')}", body, key=Role.PROBER)
    assert answer.status == 422


@pytest.mark.both_databases
async def test_unknown_directory_is_not_found(api: RegistryApi) -> None:
    for method, path, code in (
        ("GET", "nowhere", "directory_not_found"),
        ("POST", "nowhere/confirm", "directory_not_found"),
    ):
        answer = await api.ask(method, f"{DIRECTORIES}/{path}")
        assert (answer.status, answer.json()["error"]["code"]) == (404, code)
    await upload(api, "dir", "one", urls(1))
    answer = await api.ask("POST", f"{DIRECTORIES}/dir/imports/two/apply", {"pages": 1})
    assert (answer.status, answer.json()["error"]["code"]) == (404, "import_not_found")


async def test_directories_and_open_imports_are_bounded(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_directory, "MAX_DIRECTORIES", 1)
    monkeypatch.setattr(import_directory, "MAX_OPEN_IMPORTS", 2)
    await upload(api, "dir", "one", urls(1))
    other, _ = await _new_key(api)
    path = f"{DIRECTORIES}/dir/imports/two/pages/1"
    assert (await api.ask("PUT", path, {"urls": urls(1)}, key=other)).status == 200
    for path in ("dir/imports/three/pages/1", "other/imports/one/pages/1"):
        answer = await api.ask("PUT", f"{DIRECTORIES}/{path}", {"urls": []})
        assert (answer.status, answer.json()["error"]["code"]) == (409, "too_many")


@pytest.mark.both_databases
async def test_waiting_pages_of_a_prober_key_are_bounded_over_all_directories(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_directory, "MAX_WAITING_PAGES", 2)
    await upload(api, "one", "a", urls(1))
    await upload(api, "two", "a", urls(2))
    body = {"urls": urls(3)}
    for path in ("one/imports/a/pages/2", "three/imports/a/pages/1"):
        answer = await api.ask("PUT", f"{DIRECTORIES}/{path}", body, key=Role.PROBER)
        assert (answer.status, answer.json()["error"]["code"]) == (409, "too_many")
    # A repeated page needs no room; other keys and operators have their own.
    assert (await upload(api, "two", "a", urls(2)))["pages"] == 1
    other, _ = await _new_key(api)
    for key in (other, Role.ADMIN):
        path = f"{DIRECTORIES}/three/imports/{'b' if key == other else 'c'}/pages/1"
        assert (await api.ask("PUT", path, body, key=key)).status == 200
    # Applied pages make room.
    await apply(api, "one", "a", 1)
    assert (await upload(api, "four", "a", urls(4)))["pages"] == 1


@pytest.mark.both_databases
@pytest.mark.parametrize("key", [Role.PROBER, Role.COORDINATOR])
async def test_new_import_replaces_unfinished_ones_of_its_key(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch, key: Role
) -> None:
    monkeypatch.setattr(import_directory, "MAX_WAITING_PAGES", 3)
    monkeypatch.setattr(import_directory, "MAX_OPEN_IMPORTS", 3)
    other, _ = await _new_key(api)

    async def send(import_id: str, page: int, key: Role | str = key, name: str = "dir") -> Any:
        path = f"{DIRECTORIES}/{name}/imports/{import_id}/pages/{page}"
        return await api.ask("PUT", path, {"urls": urls(page)}, key=key)

    assert (await send("other", 1, other)).status == 200
    assert (await send("elsewhere", 1, name="second")).status == 200
    # A client that is killed again and again in the middle of a list.
    for number in range(5):
        for page in (1, 2):
            assert (await send(f"killed-{number}", page)).status == 200
    late = await send("killed-0", 3)
    assert (late.status, late.json()["error"]["code"]) == (409, "import_over")
    assert (await send("killed-4", 1)).json()["pages"] == 2
    # Imports of other keys and directories go on.
    assert (await send("other", 2, other)).json()["pages"] == 2
    assert (await send("elsewhere", 1, name="second")).json()["state"] == "uploading"


@pytest.mark.both_databases
async def test_concurrent_pages_of_a_key_stay_within_the_bound(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_directory, "MAX_WAITING_PAGES", 3)
    paths = [f"{DIRECTORIES}/dir-{number}/imports/a/pages/1" for number in range(12)]
    for path in paths:
        made = await api.ask("PUT", path.replace("/a/", "/b/"), {"urls": []}, key=Role.COORDINATOR)
        assert made.status == 200
    asked = [api.ask("PUT", path, {"urls": urls(1)}, key=Role.PROBER) for path in paths]
    answers = [answer.status for answer in await asyncio.gather(*asked)]
    assert (answers.count(200), answers.count(409)) == (3, 9)


@pytest.mark.parametrize("role", [Role.READER, Role.ENROLL])
async def test_reader_cannot_import_a_directory(api: RegistryApi, role: Role) -> None:
    path = f"{DIRECTORIES}/dir/imports/one/pages/1"
    assert (await api.ask("PUT", path, {"urls": []}, key=role)).status == 403


@pytest.mark.parametrize("pages", [([], [1, 2]), ([1, 2], []), ([],)])
async def test_import_accepts_an_empty_page(api: RegistryApi, pages: Sequence[list[int]]) -> None:
    record = await put(api, "dir", "one", *(urls(*numbers) for numbers in pages))
    assert record["state"] == "applied"
    assert await listed(api, 1, 2) == urls(*sorted(number for numbers in pages for number in numbers))


@pytest.mark.both_databases
async def test_list_with_an_erased_agent_omits_it_until_the_list_is_read_again(
    api: RegistryApi, clock: WoundClock
) -> None:
    both = urls(1, 2)
    for name in ("dir", "other"):
        await put(api, name, "one", both[:1] if name == "other" else both, etag="v1")
    await see_alive(api, clock, both[1])
    erased = await api.ask("DELETE", f"/api/v1/agents/{target_id(both[1])}/record")
    assert erased.status == 200, erased.body
    shown = await directory(api)
    assert shown["size"] == 1
    # The prober's knowledge of the list is no longer confirmed.
    assert "etag" not in shown["applied"]
    assert (await directory(api, "other"))["applied"]["etag"] == "v1"
    assert await listed(api, 1, 2) == both[:1]
    record = await put(api, "dir", "two", both, etag="v1")
    assert (record["state"], record["added"], record["removed"]) == ("applied", 1, 0)
    assert (await directory(api))["size"] == 2
    assert await listed(api, 1, 2) == both
