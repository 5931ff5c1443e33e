"""Requests about leases, and the states that they guard (protocol 6)."""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from lifesign.client.registry_connection import (
    Question,
    RegistryConnection,
    RegistryReply,
    body_of,
    incarnation_header,
    path_of,
    query_of,
    read_answer,
)
from lifesign.domain.models.leases import LeaseList, LeaseRecord, StateRecord
from lifesign.domain.tasks.lease import MAX_TTL_SECONDS, MIN_TTL_SECONDS, TTL_SECONDS
from lifesign.errors import InvalidValue

TOKEN_HEADER = "X-Fencing-Token"  # noqa: S105 - the name of a header


class _Ask(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    ttl_seconds: Annotated[float, Field(ge=MIN_TTL_SECONDS, le=MAX_TTL_SECONDS)]


class _Acquisition(_Ask):
    resource: Annotated[str, Field(min_length=1)]


class _Renewal(_Ask):
    fencing_token: Annotated[int, Field(ge=1)]


class HeldLease(LeaseRecord):
    """A lease that the caller has acquired, with the caller's own deadline."""

    deadline_s: float = -math.inf
    """Deadline of the holder's work, by `boot_clock.now_s`. It counts from the time of the request, so that
    the lease never expires in the registry before it does for its holder.
    """


class RegistryLeases:
    """Requests about leases (`client.leases`)."""

    def __init__(self, connection: RegistryConnection) -> None:
        self._connection = connection

    async def acquire(
        self, resource: str, *, ttl_seconds: float = TTL_SECONDS, incarnation: int | None = None
    ) -> HeldLease:
        """Acquire a lease; Conflict with `existing_lease` if the resource is leased.

        Not repeated once it may have been executed: an unknown lease ends by itself. With `incarnation`, Gone
        if another incarnation of the agent has begun, here and below.
        """
        body = body_of(_Acquisition, resource=resource, ttl_seconds=ttl_seconds)
        question = Question(
            method="POST", path=path_of("leases"), body=body, headers=incarnation_header(incarnation)
        )
        return _held_lease(await self._connection.ask(question), ttl_seconds)

    async def renew(
        self,
        lease_id: str,
        *,
        fencing_token: int,
        ttl_seconds: float = TTL_SECONDS,
        incarnation: int | None = None,
    ) -> HeldLease:
        """Renew a lease; Stale if it has ended, also if the resource is free now."""
        body = body_of(_Renewal, fencing_token=fencing_token, ttl_seconds=ttl_seconds)
        question = Question(
            method="POST",
            path=path_of("leases", lease_id, "renew"),
            body=body,
            headers=incarnation_header(incarnation),
            may_repeat=True,
        )
        return _held_lease(await self._connection.ask(question), ttl_seconds)

    async def release(self, lease_id: str, *, incarnation: int | None = None) -> None:
        """Release a lease. A repeated release is no error."""
        await self._connection.ask(
            Question(
                method="DELETE",
                path=path_of("leases", lease_id),
                headers=incarnation_header(incarnation),
                may_repeat=True,
            )
        )

    async def list(
        self,
        *,
        resource: str | None = None,
        holder: str | None = None,
        include_ended: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> LeaseList:
        """Return one page of the current leases, at most 1000.

        `include_ended`: also the last lease of each resource that is free now. `cursor` is that of the page
        before, with the same filter.
        """
        query = query_of(
            resource=resource,
            holder=holder,
            include_ended="true" if include_ended else None,
            limit=limit,
            cursor=cursor,
        )
        question = Question(method="GET", path=path_of("leases"), query=query, may_repeat=True)
        return await self._connection.ask_for(LeaseList, question)


class RegistryStates:
    """Requests about states of intents (`client.states`). A lease protects each state."""

    def __init__(self, connection: RegistryConnection) -> None:
        self._connection = connection

    async def read(self, intent_id: str, scope: str) -> StateRecord:
        """Return the state of an intent's scope; NotFound if it was never written."""
        question = Question(method="GET", path=_state_path(intent_id, scope), may_repeat=True)
        return await self._connection.ask_for(StateRecord, question)

    async def write(
        self,
        intent_id: str,
        scope: str,
        state: Mapping[str, Any],
        *,
        fencing_token: int,
        incarnation: int | None = None,
    ) -> StateRecord:
        """Replace the state of an intent's scope; Stale unless `fencing_token` is that of the current lease.

        Not repeated once it may have been executed: `read` shows whether it was.
        """
        question = Question(
            method="PUT",
            path=_state_path(intent_id, scope),
            body=_json_of(state),
            headers={**incarnation_header(incarnation), TOKEN_HEADER: str(fencing_token)},
        )
        return await self._connection.ask_for(StateRecord, question)


def _state_path(intent_id: str, scope: str) -> str:
    # A scope may contain slashes, an intent's id may not.
    return path_of("intents", intent_id, "state", *scope.split("/"))


def _json_of(state: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(dict(state), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue("state", "something else", f"JSON values ({error})") from None


def _held_lease(reply: RegistryReply, ttl_seconds: float) -> HeldLease:
    lease = read_answer(HeldLease, reply)
    return lease.model_copy(update={"deadline_s": reply.sent_at_s + ttl_seconds})
