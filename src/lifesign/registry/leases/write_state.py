"""Guarded states: small JSON objects that only the holder of their lease may write (protocol 6.4)."""

from typing import Annotated, Any

from pydantic import AfterValidator, RootModel

from lifesign.domain.access.permissions import Permission, may, require
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest, InvalidResource, NotAllowed
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.lease_payloads import StateWritten
from lifesign.domain.health.document import MAX_NUMBER
from lifesign.domain.models.base import moment
from lifesign.domain.models.leases import StateRecord
from lifesign.domain.parsing.json_limits import check_json_depth
from lifesign.domain.tasks.lease import RefusalCode, check_write, intent_scope_resource, is_unexpired
from lifesign.errors import LifesignError
from lifesign.registry.errors import StateNotFound, TokenRequired
from lifesign.registry.leases.hold_lease import check_end, holder_of, refusal_for
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.serializers.lease_records import refused
from lifesign.registry.status_changes.lease_events import MAX_INTENT_ID_CHARACTERS, intent_of, write_rejected
from lifesign.storage.agents import fenced_state
from lifesign.storage.agents.fenced_state import StoredState
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.tasks import leases

TOKEN_HEADER = "X-Fencing-Token"  # noqa: S105 - the name of a header
MAX_TOKEN_DIGITS = len(str(MAX_NUMBER))
MAX_STATE_BYTES = 65_536
"""Maximum size of a state in a request."""
MAX_STATE_DEPTH = 32
PATH = "/api/v1/intents/{intent_id}/state/{scope:path}"


def _check_state(state: dict[str, Any]) -> dict[str, Any]:
    return check_json_depth(state, MAX_STATE_DEPTH)


class State(RootModel[Annotated[dict[str, Any], AfterValidator(_check_state)]]):
    """The body of `PUT …/state/{scope}`: any JSON object."""


def write_state(transaction: Transaction, call: Call) -> OperationReply | LifesignError:
    """Store a state if the caller holds the lease of the scope, with the current fencing token.

    The check and the write are one transaction. A refused write changes nothing, and is logged.
    """
    # A refusal is returned, not raised: its event has to be committed.
    resource, writer, token = _resource(call), holder_of(call.caller), _token(call)
    require(call.caller, Permission.WRITE_STATE, call.caller.agent_id)
    claim = leases.find(transaction, resource, to_change=True)
    # The lock may have been waited for.
    now_s = transaction.after_waiting().now_s
    if claim is not None and claim.lease_id is None:
        claim = None
    refusal = check_write(claim, writer, token, now_s)
    if refusal is not None:
        if claim is not None and refusal.code is RefusalCode.LEASE_ENDED:
            check_end(transaction, claim, now_s)
        refusal = refusal_for(refusal, call.caller)
        event = write_rejected(refusal, resource, writer=writer, token=token, agent_id=call.caller.agent_id)
        event_log.append(transaction, [event])
        lease_id = resource if refusal.claim is None else str(refusal.claim.lease_id)
        return refused(refusal, lease_id, now_s=now_s, token=token)
    before = fenced_state.find(transaction, resource)
    written = StoredState(
        resource=resource,
        state=call.body_as(State).root,
        version=1 if before is None else before.version + 1,
        token=token,
        holder=writer,
        written_at_s=now_s,
    )
    fenced_state.write(transaction, written)
    event_log.append(transaction, [_written(written, call)])
    return OperationReply(content=_record(written))


def read_state(transaction: Transaction, call: Call) -> OperationReply:
    """Return a state. An agent may read only states of scopes whose lease it holds."""
    resource = _resource(call)
    if not may(call.caller, Permission.READ_LEASES):
        claim = leases.find(transaction, resource)
        is_holder = claim is not None and claim.holder == holder_of(call.caller)
        if claim is None or not is_holder or not is_unexpired(claim, transaction.now_s):
            raise NotAllowed(call.caller.role, Permission.READ_LEASES, None)
    state = fenced_state.find(transaction, resource)
    if state is None:
        raise StateNotFound(resource)
    return OperationReply(content=_record(state))


def _resource(call: Call) -> str:
    intent_id = call.path["intent_id"]
    if len(intent_id) > MAX_INTENT_ID_CHARACTERS:
        raise InvalidResource(intent_id, f"an intent id of at most {MAX_INTENT_ID_CHARACTERS} characters")
    return intent_scope_resource(intent_id, call.path["scope"])


def _token(call: Call) -> int:
    """Return the fencing token of the request."""
    text = call.headers.get(TOKEN_HEADER.lower())
    if text is None:
        raise TokenRequired
    is_number = text.isascii() and text.isdecimal() and len(text) <= MAX_TOKEN_DIGITS
    if not is_number or int(text) > MAX_NUMBER:
        expected = f"{TOKEN_HEADER}: expected a whole number, 0 to {MAX_NUMBER}"
        raise InvalidRequest([Finding("invalid_token", "", expected)])
    return int(text)


def _written(state: StoredState, call: Call) -> EventDraft:
    payload = StateWritten(
        resource=state.resource,
        holder=holder_of(call.caller),
        fencing_token=state.token,
        version=state.version,
    )
    return EventDraft(
        type=EventType.STATE_WRITTEN,
        actor=call.actor,
        payload=payload,
        agent_id=call.caller.agent_id,
        intent_id=intent_of(state.resource),
    )


def _record(state: StoredState) -> StateRecord:
    return StateRecord(
        resource=state.resource,
        state=dict(state.state),
        version=state.version,
        fencing_token=state.token,
        holder=state.holder,
        written_at=moment(state.written_at_s),
    )


OPERATIONS = (
    Operation(
        method="PUT",
        path=PATH,
        summary=f"Write the state of an intent's scope, guarded by {TOKEN_HEADER}",
        action=Permission.WRITE_STATE,
        function=write_state,
        body=State,
        example={"progress": 0.5, "next_step": "compare the sources"},
        answer=StateRecord,
        errors=(403, 412, 422, 428),
        headers=(TOKEN_HEADER,),
        max_body_bytes=MAX_STATE_BYTES,
    ),
    Operation(
        method="GET",
        path=PATH,
        summary="Read the state of an intent's scope",
        action=Permission.READ_LEASES,
        function=read_state,
        is_write=False,
        answer=StateRecord,
        errors=(404, 422),
    ),
)
