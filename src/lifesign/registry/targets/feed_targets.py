"""Targets of a shard for its prober (protocol 8; `GET /api/v1/shards/{shard}/targets`).

The answer contains all targets, or only the changes since the last request. A list of several pages has the
version of the first one: later changes come with the next request for changes.
"""

import logging
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import Field, ValidationError
from pydantic_core import from_json

from lifesign.domain.access.event_actor import KEY_ACTOR_PREFIX
from lifesign.domain.access.permissions import Permission, is_current
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest
from lifesign.domain.models.base import Body, moment
from lifesign.domain.models.shards import ShardTargets
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.probing.cadence import last_alive_s, without_card_reading, without_waits
from lifesign.domain.targets.target import SHARDS
from lifesign.registry.request_handling.cursors import Cursor, cursor_at, numbers_in
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.keys import key_rows
from lifesign.storage.targets import target_rows
from lifesign.storage.targets.target_rows import FeedRow, TargetCursor

MAX_PAGE = 5_000
MAX_SHARD_DIGITS = 9

_LISTED = "shard_targets"

_NO_MEMORY = ProbeMemory()

_log = logging.getLogger("lifesign.registry")


class ShardQuery(Body):
    """The query of `GET /api/v1/shards/{shard}/targets`."""

    after_version: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Only changes after this `version` of an earlier answer. Absent: all targets."""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = MAX_PAGE
    cursor: Cursor | None = None
    """`cursor` of the previous page. Send it with the same query."""


def list_shard_targets(transaction: Transaction, call: Call) -> OperationReply:
    """Return one page of the targets of a shard, or of their changes since a version."""
    query = call.query_as(ShardQuery)
    shard = _shard_in(call)
    place: TargetCursor | None = None
    if query.cursor is None:
        until = target_rows.last_version(transaction)
    else:
        until, *where = numbers_in(query.cursor, _LISTED, 3)
        place = TargetCursor(*where)
    found = target_rows.feed(
        transaction, shard, after=query.after_version, until=until, place=place, limit=query.limit + 1
    )
    page = found[: query.limit]
    prober_key = f"{KEY_ACTOR_PREFIX}{call.caller.key_id}"
    ended_keys = _ended_keys(transaction, {row.reported_by for row in page} - {prober_key, None})
    # In the form of `ShardTargets`; built by hand, since a shard may contain thousands.
    answer: dict[str, Any] = {
        "targets": [_shown(row, prober_key, ended_keys) for row in page if not row.is_gone],
        "gone": [row.subject_id for row in page if row.is_gone],
        "version": until,
    }
    if len(found) > len(page):
        answer["cursor"] = cursor_at(_LISTED, until, page[-1].place.version, page[-1].place.id)
    return OperationReply(content=answer)


def _shard_in(call: Call) -> int:
    text = call.path["shard"]
    is_number = text.isascii() and text.isdecimal() and len(text) <= MAX_SHARD_DIGITS
    if not is_number or int(text) >= SHARDS:
        expected = f"expected a shard from 0 to {SHARDS - 1}"
        raise InvalidRequest([Finding("invalid_shard", "", expected)])
    return int(text)


def _ended_keys(transaction: Transaction, prober_keys: Collection[str | None]) -> set[str]:
    """Return which of these prober keys were revoked, or have expired."""
    ended = set()
    for prober_key in prober_keys:
        key_id = (prober_key or "").removeprefix(KEY_ACTOR_PREFIX)
        stored = key_rows.find_by_id(transaction, key_id)
        if stored is not None and not is_current(stored, transaction.now_s):
            ended.add(f"{KEY_ACTOR_PREFIX}{key_id}")
    return ended


def _shown(row: FeedRow, prober_key: str, ended_keys: Collection[str]) -> dict[str, Any]:
    shown: dict[str, Any] = {"subject_id": row.subject_id, "url": row.url, "version": row.place.version}
    memory = remembered(row)
    if memory is not _NO_MEMORY:
        if row.reported_by != prober_key:
            memory = without_card_reading(memory)
        is_of_another = row.alive_at_s is not None and row.reported_by != prober_key
        if is_of_another or row.reported_by in ended_keys:
            # A hostile key may have invented the wait, to hide the death of the agent.
            memory = without_waits(memory)
        shown["memory"] = from_json(memory.to_json())
    if row.recheck_at_s is not None:
        shown["recheck_at"] = moment(row.recheck_at_s)
    if row.confirmed_at_s is not None:
        shown["confirmed_at"] = moment(row.confirmed_at_s)
    if row.kind is not None:
        shown["kind"] = row.kind
    if row.thresholds_s is not None:
        shown["thresholds_s"] = row.thresholds_s
    if row.entered_at_s is not None:
        shown["entered_at"] = moment(row.entered_at_s)
    return shown


def remembered(row: FeedRow) -> ProbeMemory:
    """Return the memory to send with a target for its next probe; `ProbeMemory()` if there is none.

    A target whose agent is alive has something to lose, also if its memory does not show it: the memory was
    lost with an earlier URL, it cannot be read, or the agent never answered a prober. A failure then needs a
    witness. An agent that became active later than its memory says counts as alive since then: a confirmation
    from between the two concerned the time before.
    """
    memory = recalled(row.subject_id, row.memory) or _NO_MEMORY
    known_s = last_alive_s(memory)
    alive_at_s = row.alive_at_s if known_s is None else row.active_since_s
    if alive_at_s is None or (known_s is not None and known_s >= alive_at_s):
        return memory
    return memory.model_copy(update={"alive_at_s": alive_at_s})


def recalled(subject_id: str, memory: str | None) -> ProbeMemory | None:
    """Return a target's stored memory for probes; None if there is none, or if it is unreadable (logged).

    Such a target starts again without history, and its next probe stores a readable memory: no other target
    waits.
    """
    if memory is None:
        return None
    try:
        return ProbeMemory.from_json(memory)
    except ValidationError as error:
        why = error.errors(include_url=False, include_context=False, include_input=False)[0]["msg"]
        _log.warning("the stored probe history of %s is invalid, and is discarded: %s", subject_id, why)
        return None


OPERATIONS = (
    Operation(
        method="GET",
        path="/api/v1/shards/{shard}/targets",
        summary="List the targets of a shard, or their changes",
        action=Permission.LEASE_SHARDS,
        function=list_shard_targets,
        is_write=False,
        query=ShardQuery,
        answer=ShardTargets,
        errors=(422,),
    ),
)
