"""HTTP statuses and codes of errors."""

import logging
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from starlette.responses import Response

from lifesign.domain import errors as domain_errors
from lifesign.domain.access.permissions import Permission, Role, permission_hint, role_hint
from lifesign.errors import LifesignError
from lifesign.registry import errors
from lifesign.serving.error_body import RETRY_SECONDS, problem
from lifesign.storage import errors as storage_errors

INTERNAL_ERROR_TEXT = "internal error, which was logged"

_log = logging.getLogger("lifesign.registry")

# An error that is absent from this table is a defect: the answer is 500 without details.
STATUS_AND_CODE: Mapping[type[LifesignError], tuple[int, str]] = MappingProxyType({
    errors.BodyNotJson:       (400, "not_json"),
    errors.UnknownKey:        (401, "unknown_key"),
    domain_errors.BudgetExceeded:    (402, "budget_exceeded"),
    domain_errors.NotAllowed:        (403, "not_allowed"),
    errors.NotHolder:         (403, "not_holder"),
    errors.AgentNotFound:     (404, "agent_not_found"),
    errors.WebhookNotFound:   (404, "webhook_not_found"),
    errors.LeaseNotFound:     (404, "lease_not_found"),
    errors.StateNotFound:     (404, "state_not_found"),
    errors.KeyNotFound:       (404, "key_not_found"),
    errors.PoolNotFound:      (404, "pool_not_found"),
    errors.TargetNotFound:    (404, "target_not_found"),
    errors.InterfaceVersionNotFound: (404, "interface_version_not_found"),
    errors.NetworkClassNotFound: (404, "network_class_not_found"),
    errors.DirectoryNotFound: (404, "directory_not_found"),
    errors.ImportNotFound:    (404, "import_not_found"),
    errors.OptOutNotFound:    (404, "opt_out_not_found"),
    errors.TaskNotFound:      (404, "task_not_found"),
    errors.CallNotFound:      (404, "call_not_found"),
    errors.BodyTooSlow:       (408, "body_too_slow"),
    errors.AlreadyRegistered: (409, "already_registered"),
    domain_errors.InvalidTransition: (409, "invalid_transition"),
    domain_errors.InvalidTaskTransition: (409, "invalid_task_transition"),
    errors.CallOver:          (409, "call_over"),
    errors.TooManyCommands:   (409, "too_many_commands"),
    errors.TooManyWebhooks:   (409, "too_many_webhooks"),
    errors.ImportOver:        (409, "import_over"),
    errors.NothingSuspended:       (409, "nothing_held"),
    errors.TooMany:           (409, "too_many"),
    errors.TooManyWorkers:    (409, "too_many"),
    errors.LeaseHeld:         (409, "lease_held"),
    errors.KeyEnded:          (409, "key_ended"),
    errors.LastAdminKey:      (409, "last_admin_key"),
    errors.AgentDraining:     (409, "agent_draining"),
    errors.PoolTooLarge:      (409, "pool_too_large"),
    errors.TooManyAgents:     (409, "too_many_agents"),
    errors.AgentGone:         (410, "agent_gone"),
    errors.TargetGone:        (410, "target_gone"),
    errors.StaleVersion:      (412, "stale_version"),
    errors.LeaseOver:         (412, "lease_ended"),
    errors.StaleToken:        (412, "stale_token"),
    errors.TokenNotIssued:    (412, "token_not_issued"),
    errors.RunOfAnotherTask:          (412, "wrong_run"),
    errors.BodyTooLarge:      (413, "body_too_large"),
    errors.BodyNotPlain:      (415, "not_plain_json"),
    domain_errors.InvalidRequest:    (422, "invalid_request"),
    domain_errors.InvalidResource:   (422, "invalid_resource"),
    errors.KeyReused:         (422, "idempotency_key_reused"),
    errors.VersionRequired:   (428, "version_required"),
    errors.TokenRequired:     (428, "token_required"),
    errors.TooManyRequests:   (429, "too_many_requests"),
    storage_errors.StoreUnavailable:  (503, "store_unavailable"),
    storage_errors.DatabaseReplaced:  (503, "database_replaced"),
    domain_errors.TokensExhausted:   (503, "tokens_exhausted"),
    errors.TooManyStreams:    (503, "too_many_streams"),
    errors.TooManyClaims:     (503, "too_many_claims"),
    errors.LeaseEndUncertain: (503, "lease_end_uncertain"),
})  # fmt: skip


def error_response(error: LifesignError) -> Response:
    """Return the response for an error."""
    found = STATUS_AND_CODE.get(type(error))
    if found is None:
        _log.error("internal error, answered with HTTP 500: %s", error, exc_info=error)
        return problem(500, "internal", INTERNAL_ERROR_TEXT)
    status, code = found
    members: dict[str, Any] = {}
    match error:
        case errors.StaleVersion():
            members = {"current_version": error.version}
        case errors.LeaseHeld():
            members = {"existing_lease": error.existing_lease}
        case _:
            pass
    return problem(
        status,
        code,
        str(error),
        hint=hint_of(error),
        details=_details(error),
        headers=headers_of(error),
        is_expected=_is_expected(error),
        **members,
    )


def _is_expected(error: LifesignError) -> bool:
    """Return whether a new agent gets this answer: it looks for its record before it registers."""
    match error:
        case domain_errors.NotAllowed(role=Role.ENROLL, action=Permission.READ_AGENT):
            return True
    return False


def hint_of(error: LifesignError) -> str:
    """Return a remedy for an error in one line; empty if none is known."""
    match error:
        case domain_errors.NotAllowed():
            return permission_hint(Permission(error.action))
        case domain_errors.InvalidRequest() if any(fault.pointer == "/role" for fault in error.faults):
            return role_hint()
        case storage_errors.StoreUnavailable():
            # For the operator of this server, who reads the log; callers get Retry-After.
            return ""
    return error.hint


def headers_of(error: LifesignError) -> dict[str, str]:
    """Return the headers that belong to an error, in JSON and HTML responses."""
    match error:
        case errors.UnknownKey():
            return {"WWW-Authenticate": "Bearer"}
        case errors.TooManyRequests():
            return {"Retry-After": str(max(1, math.ceil(error.wait_s)))}
        case storage_errors.StoreUnavailable():
            # A load balancer may give the next connection to a server that reaches the database.
            return {"Retry-After": str(RETRY_SECONDS), "Connection": "close"}
        case errors.TooManyStreams() | errors.TooManyClaims() | errors.LeaseEndUncertain():
            return {"Retry-After": str(RETRY_SECONDS)}
        case errors.StaleVersion():
            return {"ETag": error.etag}
        case _:
            return {}


def _details(error: LifesignError) -> dict[str, Any]:
    """Return the details of an error for programs."""
    if isinstance(error, domain_errors.InvalidRequest):
        return {
            "faults": [
                {"pointer": fault.pointer, "name": fault.name, "message": fault.message}
                for fault in error.faults
            ]
        }
    return {
        name: value
        for name, value in vars(error).items()
        if isinstance(value, str | int | float) and name != "hint"
    }
