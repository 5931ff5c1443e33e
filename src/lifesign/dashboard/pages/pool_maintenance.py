"""Actions on a whole pool (`/agents?pool=...`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request

from lifesign.dashboard.maintenance_facts import MaintenanceGroup, maintenances
from lifesign.dashboard.page_handler import RequestContext, seconds_in
from lifesign.domain.access.permissions import Permission
from lifesign.domain.lifecycle.status_table import ALIVE, Status
from lifesign.storage.agents.search import maintained_of, members_of

_MAINTENANCE = "/api/v1/pools/{role_id}/maintenance"


@dataclass(frozen=True, slots=True)
class PoolShown:
    """A pool as the table of its agents shows it."""

    name: str
    members: Mapping[Status, int]
    living: int
    """Number of living agents."""
    maintenances: Sequence[MaintenanceGroup]
    may_begin: bool
    """True if at least one living agent is not in maintenance."""
    may_end: bool
    """True if at least one living agent is in maintenance."""


def pool_shown(context: RequestContext, role_id: str) -> PoolShown:
    """Return the members of a pool, and whether the visitor may change all of them."""
    found = members_of(context.transaction, role_id)
    members = {status: found[status] for status in Status if status in found}
    maintained = maintained_of(context.transaction, role_id)
    living, in_maintenance = (
        sum(counts.get(status, 0) for status in ALIVE) for counts in (found, maintained)
    )
    may_maintain = context.visitor.may(Permission.SET_MAINTENANCE)
    return PoolShown(
        name=role_id,
        members=members,
        living=living,
        maintenances=maintenances(context.transaction, role_id),
        may_begin=may_maintain and living > in_maintenance,
        may_end=may_maintain and in_maintenance > 0,
    )


def begin(context: RequestContext, request: Request, form: Mapping[str, str]) -> str:
    """Begin the maintenance of the pool's living members; agents that join later are not included."""
    role_id = request.path_params["role_id"]
    body = {"seconds": seconds_in(form), "reason": form.get("reason", "")}
    context.ask("PUT", _MAINTENANCE, role_id=role_id, body=body)
    return "maintenance"


def end(context: RequestContext, request: Request, _form: Mapping[str, str]) -> str:
    """End the maintenance of a pool."""
    role_id = request.path_params["role_id"]
    context.ask("DELETE", _MAINTENANCE, role_id=role_id)
    return "maintained"
