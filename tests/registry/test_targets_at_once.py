import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import text
from tests.support.databases import WoundClock
from tests.support.directory_api import DIRECTORIES, claim, feed, put
from tests.support.registry_api import AGENTS, RegistryApi

from lifesign.domain.models.base import moment
from lifesign.domain.targets.target import host_of, shard_of, target_id
from lifesign.registry.events.verify_events import verify_log
from lifesign.registry.targets.opt_out_origins import prove
from lifesign.storage.engine.transaction import Transaction

URLS = [f"https://agent-{number % 15}.example/{number}" for number in range(40)]
OPTED_OUT = "https://agent-3.example"
ROUNDS = 4
SHARDS = {shard_of(host_of(url)) for url in URLS} | {shard_of(f"own-{number}.example") for number in range(3)}

# For each target: whether it should be probed, and whether it is.
_TARGETS = text("""
    SELECT subject_id, url, gone_at_s IS NULL, gone_reason, is_registered,
        EXISTS (SELECT 1 FROM listings WHERE target = targets.id),
        (SELECT status FROM agents WHERE agent_id = subject_id)
    FROM targets
""")
_SIZES = text("""
    SELECT name, size, (SELECT count(*) FROM listings WHERE directory = directories.id) FROM directories
""")


class Crowd:
    """Many who ask for different things at the same time; what they are answered is counted."""

    def __init__(self, api: RegistryApi, clock: WoundClock) -> None:
        self.api = api
        self.clock = clock
        self.chance = random.Random(7)  # noqa: S311 - always the same
        self.statuses: Counter[int] = Counter()
        self.known: dict[int, set[str]] = {}
        self.versions: dict[int, int] = {}

    async def ask(self, method: str, path: str, body: object = None, **options: Any) -> Any:
        answer = await self.api.ask(method, path, body, **options)
        self.statuses[answer.status] += 1
        return answer

    async def list_some(self, name: str, number: int) -> None:
        urls = self.chance.sample(URLS, 30)
        path = f"{DIRECTORIES}/{name}/imports/{number}"
        half = len(urls) // 2
        for page, some in enumerate((urls[:half], urls[half:]), 1):
            body = {"urls": some, "allow_shrink": True}
            if (await self.ask("PUT", f"{path}/pages/{page}", body)).status == 409:
                return
        while True:
            answer = await self.ask("POST", f"{path}/apply", {"pages": 2})
            if answer.status != 200 or answer.json()["state"] not in {"adding", "removing"}:
                return

    async def report_some(self) -> None:
        seen = [
            {
                "target_url": url,
                "observed_at": moment(self.clock.at_s + self.chance.random()).isoformat(),
                "transport": {"result": self.chance.choice(["ok", "refused"])},
            }
            for url in self.chance.sample(URLS, 10)
        ]
        answer = await self.api.report(*seen)
        self.statuses[answer.status] += 1

    async def register_one(self, number: int) -> None:
        card_url = f"https://own-{number % 3}.example/"
        body = {
            "agent_id": f"own-{number % 3}",
            "monitoring": "probe",
            "card_url": card_url,
            "supersede": True,
        }
        await self.ask("POST", AGENTS, body)
        if number % 2:
            await self.ask("DELETE", f"{AGENTS}/own-{number % 3}")

    async def opt_out(self) -> None:
        asked = (await self.ask("POST", "/api/v1/opt-outs", {"url": OPTED_OUT})).json()
        await self.api.database.write(
            lambda transaction: prove(transaction, OPTED_OUT, asked["token"], "server")
        )

    async def follow(self) -> None:
        """Read the changes of each shard, as its prober does, while all others work."""
        for shard in SHARDS:
            changed = await feed(self.api, shard, self.versions.get(shard), limit=3)
            known = self.known.setdefault(shard, set())
            known -= set(changed["gone"])
            known |= {target["subject_id"] for target in changed["targets"]}
            self.versions[shard] = changed["version"]

    async def take_off_one(self, number: int) -> None:
        await self.ask("DELETE", f"{AGENTS}/{target_id(URLS[number])}")


@pytest.mark.both_databases
async def test_concurrent_changes_stay_consistent(api: RegistryApi, clock: WoundClock) -> None:
    crowd = Crowd(api, clock)
    await put(api, "one", "start", URLS)
    for number in range(ROUNDS):
        clock.advance(2)
        work = [
            *(crowd.list_some("one", 3 * number + place) for place in range(3)),
            *(crowd.list_some("two", 2 * number + place) for place in range(2)),
            *(crowd.report_some() for _ in range(4)),
            *(crowd.register_one(number + place) for place in range(3)),
            *(claim(api, worker) for worker in ("a", "b")),
            *([crowd.opt_out()] if number == 1 else []),
            crowd.take_off_one(number),
            crowd.follow(),
        ]
        await asyncio.gather(*work)
        await crowd.follow()
    # 409: a later list took the place, or an agent is gone already.
    assert set(crowd.statuses) <= {200, 201, 204, 404, 409}, crowd.statuses

    def read(transaction: Transaction) -> tuple[list[Any], list[Any]]:
        connection = transaction.connection
        return list(connection.execute(_TARGETS)), list(connection.execute(_SIZES))

    targets, sizes = await api.database.read(read)
    assert len(targets) > len(URLS)
    assert set().union(*crowd.known.values()) == {row[0] for row in targets if row[2]}
    for subject_id, url, is_probed, reason, is_registered, is_listed, status in targets:
        is_wanted = bool(is_listed or is_registered)
        assert is_probed == (is_wanted and reason is None), (subject_id, reason, is_listed, is_registered)
        if reason == "left":
            assert not is_wanted, subject_id
        is_out = url.startswith(f"{OPTED_OUT}/")
        assert (reason == "opted_out") <= is_out <= (not is_probed), (subject_id, reason)
        if not is_probed:
            assert status in {None, "deregistered", "dead"}, (subject_id, reason, status)
    for name, size, listed in sizes:
        assert size == listed, name
    found = await api.database.read(verify_log)
    assert found.is_good, (found.fault, found.differences)
