from dataclasses import replace

from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role, StoredKey, digest_of
from lifesign.domain.tasks.lease_id import number_in
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.keys import key_rows
from lifesign.storage.tasks import lease_requesters
from lifesign.storage.tasks.lease_requesters import Holder, LeaseRequesters

UNKNOWN = digest_of("nobody's")


async def test_unknown_key_has_no_requester(api: RegistryApi) -> None:
    assert await api.database.write(
        lambda transaction: lease_requesters.lock(transaction, [], [])
    ) == LeaseRequesters(0, None, {}, {})


async def test_keys_with_agents_and_lease_holders_are_read_at_once(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    held = (await api.register("agent-2"))["agent_key"]
    lease = (await api.ask("POST", "/api/v1/leases", {"resource": "task:1"}, key=held)).json()
    number = number_in(lease["lease_id"])
    assert number is not None
    digests = [digest_of(key), digest_of(api.keys[Role.PROBER]), UNKNOWN]
    known = await api.database.write(
        lambda transaction: lease_requesters.lock(transaction, digests, [number, 99])
    )
    assert {digest: stored.role for digest, stored in known.keys.items()} == {
        digests[0]: Role.AGENT,
        digests[1]: Role.PROBER,
    }
    assert known.holders == {
        "agent-1": Holder(1, "agent-1", "active", 1),
        "agent-2": Holder(2, "agent-2", "active", 1),
    }


async def test_key_is_read_with_expiry_and_revocation_time(api: RegistryApi) -> None:
    stored = StoredKey(
        key_id="key_1", name="ä", role=Role.AGENT, agent_id="agent-9", digest=UNKNOWN, created_at_s=1.5
    )
    ended = replace(stored, key_id="key_2", digest=digest_of("2"), expires_at_s=2.5, revoked_at_s=3.5)

    def tell(transaction: Transaction) -> LeaseRequesters:
        for key in (stored, ended):
            key_rows.add(transaction, key)
        return lease_requesters.lock(transaction, [stored.digest, ended.digest], [])

    known = await api.database.write(tell)
    assert known.keys == {stored.digest: stored, ended.digest: ended}
    assert known.holders == {}
