"""Current and last holders of leases."""

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from lifesign.domain.access.permissions import Permission, may, require
from lifesign.domain.models.base import Body, check_path_segment
from lifesign.domain.models.leases import LeaseList
from lifesign.registry.request_handling.cursors import Cursor, cursor_at, numbers_in
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.serializers.lease_records import Resource, lease_record
from lifesign.registry.status_changes.lease_events import MAX_INTENT_ID_CHARACTERS
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.tasks import leases
from lifesign.storage.tasks.leases import LeaseFilter

MAX_PAGE = 1_000

_LISTED = "leases"

HolderName = Annotated[
    str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$")
]
IntentId = Annotated[
    str,
    StringConstraints(pattern=rf"^[!#-&(-.0-_a-~]{{1,{MAX_INTENT_ID_CHARACTERS}}}$"),
    Field(json_schema_extra={"not": {"enum": [".", ".."]}}),
    AfterValidator(check_path_segment),
]


class LeaseListing(Body):
    """The query of `GET /api/v1/leases`."""

    resource: Resource | None = None
    intent_id: IntentId | None = None
    """Only leases of scopes of this intent."""
    holder: HolderName | None = None
    include_ended: bool = False
    """Whether to include the last lease of each resource that is free now."""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100
    cursor: Cursor | None = None
    """`cursor` of the previous page. Send it with the same query."""


def list_leases(transaction: Transaction, call: Call) -> OperationReply:
    """Return one page of the matching leases, and the number of all matches. An agent gets only its own."""
    query = call.query_as(LeaseListing)
    holder = query.holder
    if holder is None and not may(call.caller, Permission.READ_LEASES):
        holder = call.caller.agent_id
    require(call.caller, Permission.READ_LEASES, holder)
    wanted = LeaseFilter(
        resource=query.resource,
        resource_prefix=None if query.intent_id is None else f"intent:{query.intent_id}/",
        holder=holder,
        running_at_s=None if query.include_ended else transaction.now_s,
    )
    after = 0 if query.cursor is None else numbers_in(query.cursor, _LISTED, 1)[0]
    found = leases.listing(transaction, wanted, after=after, limit=query.limit + 1)
    page = list(found)[: query.limit]
    answer = LeaseList(
        leases=[lease_record(found[number], transaction.now_s) for number in page],
        total=leases.count(transaction, wanted),
        cursor=cursor_at(_LISTED, page[-1]) if len(found) > len(page) else None,
    )
    return OperationReply(content=answer)


OPERATIONS = (
    Operation(
        method="GET",
        path="/api/v1/leases",
        summary="List leases by resource and holder",
        action=Permission.READ_LEASES,
        function=list_leases,
        is_write=False,
        query=LeaseListing,
        answer=LeaseList,
    ),
)
