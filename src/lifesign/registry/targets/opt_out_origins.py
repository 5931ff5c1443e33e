"""Opt-out of an origin from all probes (protocol 3; `/api/v1/opt-outs`).

A request returns a token, the same for all callers while it is valid: only the origin's owner can serve it.
`check_opt_outs` looks for it. Once it is found, the origin's targets are removed from all directories, until
the opt-out is withdrawn.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from lifesign.domain.access.permissions import Permission, require
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.registry_payloads import OriginChanged
from lifesign.domain.lifecycle.observed_facts import Observed, without_permission
from lifesign.domain.models.base import Body, moment
from lifesign.domain.models.opt_outs import OptOutList, OptOutRecord, OptOutRequest, OptOutUrl
from lifesign.domain.net.allowed_addresses import AddressRefused
from lifesign.domain.targets.opt_out_proof import (
    PROOF_PATH,
    TOKEN_BYTES,
    TOKEN_TTL_SECONDS,
    is_covered,
    is_open,
    origin_of,
    token_of,
)
from lifesign.domain.targets.target import host_of
from lifesign.registry.errors import OptOutNotFound, TooMany
from lifesign.registry.request_handling.cursors import Cursor, cursor_at, text_in
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.targets.retire_targets import end_records, lock_agents, retire
from lifesign.storage.agents import agent_rows
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.targets import opt_outs, target_rows
from lifesign.storage.targets.opt_outs import StoredOptOut
from lifesign.storage.targets.target_rows import GoneReason, StoredTarget

PATH = "/api/v1/opt-outs"
MAX_OPT_OUTS = 10_000
"""Maximum number of proven and requested opt-outs."""
MAX_PAGE = 1_000
MAX_ORIGIN_CHARACTERS = 280

_LISTED = "opt_outs"


class OptOutListing(Body):
    """The query of `GET /api/v1/opt-outs`."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100
    cursor: Cursor | None = None
    """`cursor` of the previous page."""


class OptOutQuery(Body):
    """The query of `DELETE /api/v1/opt-outs`."""

    url: OptOutUrl


def request_opt_out(transaction: Transaction, call: Call) -> OperationReply:
    """Return a token by which the owner of an origin proves the ownership.

    If you repeat the request, the registry looks for the token at the origin at once.
    """
    origin = _origin(call.body_as(OptOutRequest).url, "/url")
    known = opt_outs.find(transaction, origin, to_change=True)
    if known is not None and (
        known.proven_at_s is not None or is_open(known.requested_at_s, transaction.now_s)
    ):
        if known.proven_at_s is None:
            opt_outs.set_checked(transaction, origin, None)
        return OperationReply(content=_shown(known), status=201)
    if known is None and opt_outs.count(transaction) >= MAX_OPT_OUTS:
        raise TooMany("opt-outs", MAX_OPT_OUTS)
    given = opt_outs.put(transaction, origin, token_of(secrets.token_bytes(TOKEN_BYTES)))
    return OperationReply(content=_shown(given), status=201)


def list_opt_outs(transaction: Transaction, call: Call) -> OperationReply:
    """Return one page of the origins that opted out, or whose owners have not proven the ownership yet."""
    require(call.caller, Permission.MANAGE_OPT_OUTS)
    query = call.query_as(OptOutListing)
    after = "" if query.cursor is None else text_in(query.cursor, _LISTED, MAX_ORIGIN_CHARACTERS)
    found = opt_outs.listing(transaction, after=after, limit=query.limit + 1)
    page = found[: query.limit]
    answer = OptOutList(
        opt_outs=[_shown(one) for one in page],
        total=opt_outs.count(transaction),
        cursor=cursor_at(_LISTED, page[-1].origin) if len(found) > len(page) else None,
    )
    return OperationReply(content=answer)


def withdraw_opt_out(transaction: Transaction, call: Call) -> OperationReply:
    """Revert an opt-out: probers probe the origin again if a directory lists it. OptOutNotFound."""
    origin = _origin(call.query_as(OptOutQuery).url, "/url")
    version = target_rows.next_version(transaction)
    known = opt_outs.find(transaction, origin, to_change=True)
    if known is None:
        raise OptOutNotFound(origin)
    opt_outs.remove(transaction, origin)
    if known.proven_at_s is not None:
        others = opt_outs.proven_by_host(transaction).get(host_of(origin), [])
        free = [
            target.id
            for target in _covered(transaction, origin)
            if not any(is_covered(target.url, other) for other in others)
        ]
        back = target_rows.restore_targets(transaction, free, version)
        event_log.append(transaction, [_event(EventType.ORIGIN_OPTED_IN, origin, back, call.actor)])
    return OperationReply(status=204)


def prove(transaction: Transaction, origin: str, token: str, actor: str) -> bool:
    """Record that an owner's token was found, and retire the origin's targets.

    Return whether it was still open.

    Records of targets that directories listed end; an agent that registered itself keeps its own.
    """
    lock_agents(transaction, _to_go(transaction, origin))
    version = target_rows.next_version(transaction)
    known = opt_outs.find(transaction, origin, to_change=True)
    if known is None or known.token != token or known.proven_at_s is not None:
        return False
    opt_outs.set_proven(transaction, origin)
    # Some may have come since it was looked for the first time.
    going = _to_go(transaction, origin)
    ending = retire(
        transaction,
        {subject_id: target.id for subject_id, target in going.items()},
        GoneReason.OPTED_OUT,
        version,
        ends_with=lambda subject_id: not going[subject_id].is_registered,
    )
    end_records(transaction, ending, "the owner of its origin opted out", actor)
    note_opted_out(transaction, [subject_id for subject_id, target in going.items() if target.is_registered])
    event_log.append(transaction, [_event(EventType.ORIGIN_OPTED_OUT, origin, len(going), actor)])
    return True


def note_opted_out(transaction: Transaction, agent_ids: Sequence[str]) -> None:
    """Store that registered agents are no longer probed because of an opt-out; they must be locked."""
    found = agent_rows.find_named(transaction, agent_ids)
    agent_rows.set_observed(
        transaction,
        [
            agent_rows.observed_row(agent.id, without_permission(Observed.from_json(agent.observed)))
            for agent in found
            if agent.observed is not None
        ],
    )


def retire_opted_out(transaction: Transaction, urls: Mapping[str, str], version: int) -> None:
    """Retire those of these newly listed targets whose owners opted out; `urls` is indexed by target id."""
    proven = opt_outs.proven_by_host(transaction)
    if not proven:
        return
    unwanted = [
        subject_id
        for subject_id, url in urls.items()
        if any(is_covered(url, origin) for origin in proven.get(host_of(url), ()))
    ]
    if unwanted:
        numbers = target_rows.present(transaction, unwanted)
        target_rows.leave(transaction, numbers, GoneReason.OPTED_OUT, version)


def has_opted_out(transaction: Transaction, url: str) -> bool:
    """Return whether the owner of a URL, in `read_target`'s form, has opted out."""
    origin = origin_of(url)
    assert isinstance(origin, str)  # noqa: S101 - it is a target's
    # A proof over https also covers plain http on the same host.
    near = {origin, "https://" + origin.partition("://")[2]}
    return any(is_covered(url, one) for one in opt_outs.proven_among(transaction, near))


def _origin(url: str, pointer: str) -> str:
    origin = origin_of(url)
    if isinstance(origin, AddressRefused):
        raise InvalidRequest([Finding(origin.name, pointer, origin.reason)])
    return origin


def _covered(transaction: Transaction, origin: str) -> list[StoredTarget]:
    found = target_rows.on_host(transaction, host_of(origin))
    return [target for target in found if is_covered(target.url, origin)]


def _to_go(transaction: Transaction, origin: str) -> dict[str, StoredTarget]:
    """Return the present targets on an origin, by their ids."""
    found = _covered(transaction, origin)
    return {target.subject_id: target for target in found if target.gone_at_s is None}


def _event(kind: EventType, origin: str, count: int, actor: str) -> EventDraft:
    return EventDraft(type=kind, actor=actor, payload=OriginChanged(origin=origin, targets=count))


def _shown(stored: StoredOptOut) -> OptOutRecord:
    is_proven = stored.proven_at_s is not None
    return OptOutRecord(
        origin=stored.origin,
        token=stored.token,
        proof_url=stored.origin + PROOF_PATH,
        requested_at=moment(stored.requested_at_s),
        expires_at=None if is_proven else moment(stored.requested_at_s + TOKEN_TTL_SECONDS),
        checked_at=None if stored.checked_at_s is None else moment(stored.checked_at_s),
        proven_at=None if stored.proven_at_s is None else moment(stored.proven_at_s),
    )


OPERATIONS = (
    Operation(
        method="POST",
        path=PATH,
        summary="Get the token with which an owner proves that an origin must not be probed",
        action=Permission.MANAGE_OPT_OUTS,
        function=request_opt_out,
        body=OptOutRequest,
        example={"url": "https://agent.example"},
        answer=OptOutRecord,
        status=201,
        errors=(409,),
    ),
    Operation(
        method="GET",
        path=PATH,
        summary="List the origins that opted out, or for which an opt-out was requested",
        action=Permission.MANAGE_OPT_OUTS,
        function=list_opt_outs,
        is_write=False,
        query=OptOutListing,
        answer=OptOutList,
    ),
    Operation(
        method="DELETE",
        path=PATH,
        summary="Let an origin be probed again",
        action=Permission.MANAGE_OPT_OUTS,
        function=withdraw_opt_out,
        status=204,
        query=OptOutQuery,
        errors=(404,),
    ),
)
