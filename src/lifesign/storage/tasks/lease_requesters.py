"""Facts about a batch of lease requests, and about their agents.

One statement returns all of them, as JSON: on PostgreSQL a round trip costs more than the query.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json
from sqlalchemy import text

from lifesign.domain.access.permissions import Role, StoredKey
from lifesign.storage.engine.transaction import Transaction


class Holder(NamedTuple):
    """An agent that requests a lease, or that holds a requested one."""

    number: int
    agent_id: str
    status: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class LeaseRequesters:
    """Facts about the agents and keys that requests for leases concern."""

    token_floor: int
    """Number above which new tokens are."""
    swept_at_s: float | None
    """When a sweep last ran, by the database's clock then."""
    keys: Mapping[bytes, StoredKey]
    """Keys by digest, valid or not."""
    holders: Mapping[str, Holder]
    """Agents by their ids."""


_KEY = "key_id, name, role, agent_id, digest, created_at_s, expires_at_s, revoked_at_s"
_HOLDER = "id, agent_id, status, incarnation"
_SQLITE = text(f"""
    WITH known AS (SELECT {_KEY} FROM keys WHERE digest IN (SELECT value FROM json_each(:digests)))
    SELECT json_array(
        json((SELECT json_array(token_floor, swept_at_s) FROM registry WHERE id = 1)),
        json((SELECT json_group_array(json_array({_KEY})) FROM known)),
        json((
            SELECT json_group_array(json_array({_HOLDER})) FROM agents
            WHERE agent_id IN (
                SELECT agent_id FROM known
                UNION SELECT holder FROM leases WHERE number IN (SELECT value FROM json_each(:numbers))
            )
        ))
    )
""")  # noqa: S608 - constants only
# The epoch comes first: raising it locks the row FOR UPDATE, and waits for transactions that grant with the
# old epoch; a sweep locks it for less, and blocks none. Then come the agents in the common order: no agent
# dies while it is granted a lease, and none begins to drain while it releases its last one. The keys come
# last, as they are after that wait: a revocation or an erasure waits for the grant, and ends it. For the rest
# of the transaction rows are looked up by their indexes: the planner does not know that leases have just
# become many, and would read all of them to find thirty.
_POSTGRESQL = text(f"""
    WITH concerned AS (
        SELECT {_HOLDER} FROM agents
        WHERE agent_id IN (
            SELECT agent_id FROM keys WHERE digest = ANY(CAST(:digests AS text[]))
            UNION SELECT holder FROM leases WHERE number = ANY(CAST(:numbers AS bigint[]))
        )
        ORDER BY id FOR NO KEY UPDATE
    ),
    known AS (
        SELECT {_KEY} FROM keys
        WHERE digest = ANY(CAST(:digests AS text[])) AND (SELECT count(*) FROM concerned) >= 0
        ORDER BY key_id FOR SHARE
    )
    SELECT CAST(json_build_array(
        (SELECT json_build_array(token_floor, swept_at_s) FROM registry WHERE id = 1 FOR KEY SHARE),
        (SELECT json_agg(json_build_array({_KEY})) FROM known),
        (SELECT json_agg(json_build_array({_HOLDER})) FROM concerned)
    ) AS text), set_config('enable_seqscan', 'off', true)
""")  # noqa: S608 - constants only


def lock(transaction: Transaction, digests: Iterable[bytes], numbers: Iterable[int]) -> LeaseRequesters:
    """Return the keys of these digests, their agents, and the agents that hold these leases.

    `numbers` are those of the leases' rows. Until the transaction ends no other one changes the agents or the
    keys, and the epoch is not raised. Callers that are not agents are absent.
    """
    wanted, rows = sorted({digest.hex() for digest in digests}), sorted(set(numbers))
    if transaction.is_postgresql:
        rows_json = transaction.connection.scalar(_POSTGRESQL, {"digests": wanted, "numbers": rows})
    else:
        parameters = {"digests": to_json(wanted).decode(), "numbers": to_json(rows).decode()}
        rows_json = transaction.connection.scalar(_SQLITE, parameters)
    registry, keys, holder_rows = from_json(rows_json or "[]")
    token_floor, swept_at_s = registry or (0, None)
    holders = {holder.agent_id: holder for holder in (Holder(*row) for row in holder_rows or ())}
    return LeaseRequesters(
        token_floor=token_floor,
        swept_at_s=swept_at_s,
        keys={key.digest: key for key in (_key(*row) for row in keys or ())},
        holders=holders,
    )


def _key(key_id: str, name: str, role: str, agent_id: str | None, digest: str, *times_s: Any) -> StoredKey:
    created_at_s, expires_at_s, revoked_at_s = times_s
    return StoredKey(
        key_id=key_id,
        name=name,
        role=Role(role),
        agent_id=agent_id,
        digest=bytes.fromhex(digest),
        created_at_s=created_at_s,
        expires_at_s=expires_at_s,
        revoked_at_s=revoked_at_s,
    )
