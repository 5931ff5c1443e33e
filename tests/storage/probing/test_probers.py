import pytest

from lifesign.domain.credentials.scope import CredentialScope
from lifesign.storage.engine.database import Database
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.probing import probers
from lifesign.storage.probing.probers import StoredProber


@pytest.mark.parametrize("path", ["/", "/billing"])
async def test_places_of_credentials_are_kept(database: Database, path: str) -> None:
    scope = CredentialScope(name="acme", origin="https://agents.acme.example", path=path)

    def store(transaction: Transaction) -> None:
        now_s = transaction.now_s
        for name, credentials in (("a", (scope,)), ("b", ())):
            prober = StoredProber(
                holder=f"key:k/{name}", joined_at_s=now_s, expires_at_s=now_s + 60, credentials=credentials
            )
            probers.store(transaction, prober)

    await database.write(store)
    living = await database.read(lambda transaction: probers.living(transaction, 10))
    assert {each.holder: each.credentials for each in living} == {"key:k/a": (scope,), "key:k/b": ()}
