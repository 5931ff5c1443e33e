"""Leases and lease refusals in answers."""

from typing import Annotated

from pydantic import AfterValidator, StringConstraints
from pydantic_core import PydanticCustomError, to_json

from lifesign.domain.errors import InvalidResource
from lifesign.domain.events.chain import time_text
from lifesign.domain.models.base import Body, moment
from lifesign.domain.models.leases import LeaseRecord, Token, TtlSeconds
from lifesign.domain.tasks.lease import (
    MAX_RESOURCE_CHARACTERS,
    TTL_SECONDS,
    Claim,
    EndReason,
    Refusal,
    RefusalCode,
    ended,
    read_resource,
)
from lifesign.errors import LifesignError
from lifesign.registry.errors import (
    AgentDraining,
    AgentGone,
    LeaseHeld,
    LeaseNotFound,
    LeaseOver,
    NotHolder,
    StaleToken,
    TokenNotIssued,
)
from lifesign.storage.tasks.lease_requesters import Holder


def _parse_resource(text: str) -> str:
    try:
        read_resource(text)
    except InvalidResource as error:
        raise PydanticCustomError(
            "invalid_resource", "expected {expected}", {"expected": error.expected}
        ) from None
    return text


Resource = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_RESOURCE_CHARACTERS), AfterValidator(_parse_resource)
]


class LeaseRequest(Body):
    """The body of `POST /api/v1/leases`."""

    resource: Resource
    """`intent:{id}/{scope}`, `task:{id}`, `shard:{n}`, or any other name."""
    ttl_seconds: TtlSeconds = TTL_SECONDS


class LeaseRenewal(Body):
    """The body of `POST /api/v1/leases/{lease_id}/renew`."""

    fencing_token: Token
    ttl_seconds: TtlSeconds | None = None
    """Duration from now on, whatever was left; absent: 300 s, or the task's `lease_seconds`, which is the
    maximum.
    """


def lease_record(claim: Claim, now_s: float) -> LeaseRecord:
    """Return a lease as answers show it; an overdue one is expired even before a sweep ends it."""
    claim = ended(claim, EndReason.EXPIRED, now_s) if claim.expires_at_s <= now_s else claim
    return LeaseRecord(
        lease_id=claim.lease_id or "",
        resource=claim.resource,
        holder=claim.holder or "",
        fencing_token=claim.token,
        acquired_at=moment(claim.acquired_at_s),
        expires_at=moment(claim.expires_at_s),
        ended_at=None if claim.ended_at_s is None else moment(claim.ended_at_s),
        end_reason=claim.end_reason,
    )


def lease_json(claim: Claim) -> bytes:
    """Return a running claim as the JSON of its LeaseRecord, faster than by the model."""
    return to_json(
        {
            "lease_id": claim.lease_id,
            "resource": claim.resource,
            "holder": claim.holder,
            "fencing_token": claim.token,
            "acquired_at": time_text(claim.acquired_at_s),
            "expires_at": time_text(claim.expires_at_s),
        }
    )


def refused(
    refusal: Refusal, named: str, *, now_s: float, token: int = 0, agent: Holder | None = None
) -> LifesignError:
    """Return a refusal as the error for the caller.

    `named` is the requested lease or resource, `token` the token of the request, `agent` the caller.
    """
    claim = refusal.claim or Claim(resource=named)
    error: LifesignError
    match refusal.code:
        case RefusalCode.LEASE_HELD:
            shown = lease_record(claim, now_s).model_dump(mode="json", exclude_none=True)
            error = LeaseHeld(claim.resource, shown)
        case RefusalCode.AGENT_DRAINING if agent is not None:
            error = AgentDraining(agent.agent_id)
        case RefusalCode.AGENT_GONE if agent is not None:
            error = AgentGone(agent.agent_id, agent.status, agent.incarnation)
        case RefusalCode.LEASE_ENDED:
            error = LeaseOver(named, claim.resource, claim.end_reason or EndReason.EXPIRED)
        case RefusalCode.STALE_TOKEN:
            error = StaleToken(claim.resource, token, None if refusal.claim is None else claim.token)
        case RefusalCode.TOKEN_NOT_ISSUED:
            error = TokenNotIssued(claim.resource, token, claim.token)
        case RefusalCode.NOT_HOLDER:
            error = NotHolder(claim.resource)
        case _:
            error = LeaseNotFound(named)
    return error
