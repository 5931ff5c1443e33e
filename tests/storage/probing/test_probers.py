from functools import partial

import pytest
from tests.support.databases import WoundClock

from lifesign.domain.credentials.acceptance import CredentialState
from lifesign.domain.credentials.missing_credentials import GONE_SECONDS
from lifesign.domain.credentials.request_scope import CredentialScope
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.probing import probers
from lifesign.storage.probing.probers import MAX_ENDED, StoredCredential, StoredProber


@pytest.mark.parametrize("state", [None, *CredentialState])
async def test_stored_credentials_of_a_prober_are_read_back(
    database: Database, state: CredentialState | None
) -> None:
    scope = CredentialScope(
        name="acme",
        origin="https://agents.acme.example",
        path="/billing",
        card_origins=("https://cards.acme.example",),
    )
    held = StoredCredential(
        scope=scope, state=state, since_s=1_000.5, detail="HTTP 401", worked_at_s=999.5, refused_at_s=1_001.0
    )
    given = {"key:k/a": (held,), "key:k/b": ()}

    def store(transaction: Transaction) -> None:
        now_s = transaction.now_s
        for holder, credentials in given.items():
            prober = StoredProber(
                holder=holder, joined_at_s=now_s, expires_at_s=now_s + 60, credentials=credentials
            )
            probers.store(transaction, prober)

    await database.write(store)
    living = await database.read(lambda transaction: probers.running(transaction, 10))
    assert {each.holder: each.credentials for each in living} == given


async def test_longest_interval_is_that_of_the_living_workers_of_each_key(database: Database) -> None:
    given = {
        "key:k/a": (60, 300.0), "key:k/b": (60, 3_600.0), "key:l/a": (60, None),
        "key:m/a": (60, 10.5), "key:m/b": (0, 86_400.0),
    }  # fmt: skip

    def store(transaction: Transaction) -> None:
        now_s = transaction.now_s
        for holder, (living_s, interval_s) in given.items():
            prober = StoredProber(
                holder=holder, joined_at_s=now_s, expires_at_s=now_s + living_s, interval_s=interval_s
            )
            probers.store(transaction, prober)

    await database.write(store)
    assert await database.read(probers.longest_intervals_s) == {"key:k": 3_600.0, "key:m": 10.5}


async def test_workers_that_ended_are_remembered_up_to_a_number_and_a_time(
    database: Database, clock: WoundClock
) -> None:
    held = (StoredCredential(scope=CredentialScope(name="acme", origin="https://agents.acme.example")),)

    async def live(holder: str) -> None:
        def store(transaction: Transaction) -> None:
            now_s = transaction.now_s
            probers.store(
                transaction,
                StoredProber(holder=holder, joined_at_s=now_s, expires_at_s=now_s + 60, credentials=held),
            )

        await database.write(store)

    async def names() -> set[str]:
        return {each.holder for each in await database.read(probers.ended)}

    for number in range(MAX_ENDED + 2):
        clock.advance(1)
        await live(f"key:k/{number}")
        await database.write(partial(probers.end, holder=f"key:k/{number}"))
    await live("key:k/living")
    assert await names() == {f"key:k/{number}" for number in range(2, MAX_ENDED + 2)}
    await database.write(partial(probers.remove_keys, keys=["key:k"]))
    await live("key:other/a")
    assert await names() == set()
    for seconds, expected in ((60, {"key:other/a"}), (GONE_SECONDS, set())):
        clock.advance(seconds)
        assert await names() == expected
