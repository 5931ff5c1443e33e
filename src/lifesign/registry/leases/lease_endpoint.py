"""Endpoint of lease requests, for thousands of requests per second.

Like heartbeats, they come before all routes; concurrent requests become one transaction.
"""

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from lifesign.domain.access.permissions import Permission, Principal, require_one_of
from lifesign.domain.tasks.lease import Claim
from lifesign.errors import LifesignError
from lifesign.registry.leases.hold_lease import (
    ACQUIRE_PERMISSIONS,
    RELEASE_PERMISSIONS,
    RENEW_PERMISSIONS,
    Acquire,
    Answer,
    LeaseOperation,
    LeaseReleaseRequest,
    Renew,
    hold_leases,
)
from lifesign.registry.request_handling.batcher import Batcher
from lifesign.registry.request_handling.error_statuses import error_response
from lifesign.registry.request_handling.execution import OperationDispatcher, headers_in, incarnation_in
from lifesign.registry.serializers.lease_records import LeaseRenewal, LeaseRequest, lease_json
from lifesign.serving.error_body import problem

LEASES_PATH = "/api/v1/leases"
LEASE_PATH = "/api/v1/leases/{lease_id}"
RENEW_PATH = "/api/v1/leases/{lease_id}/renew"

MAX_GROUP = 200
"""Maximum of requests per transaction: about 30 ms of work."""
MAX_BODY_BYTES = 4_096

_PERMISSIONS: Mapping[str, tuple[Permission, ...]] = MappingProxyType({
    LEASES_PATH: ACQUIRE_PERMISSIONS,
    RENEW_PATH:  RENEW_PERMISSIONS,
    LEASE_PATH:  RELEASE_PERMISSIONS,
})  # fmt: skip
_BEFORE, _, _AFTER = RENEW_PATH.partition("{lease_id}")
_HEADERS = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
_log = logging.getLogger("lifesign.registry")


class LeaseEndpoint:
    """An ASGI app that acquires, renews and releases leases; `takes` recognises its requests."""

    def __init__(self, dispatcher: OperationDispatcher) -> None:
        self.groups: Batcher[LeaseOperation, Answer] = Batcher(
            dispatcher.database, hold_leases, most=MAX_GROUP
        )
        self._dispatcher = dispatcher

    def takes(self, scope: Scope) -> bool:
        """Return whether this request acquires, renews or releases a lease."""
        path: str = scope["path"]
        if not path.startswith(LEASES_PATH):
            return False
        if scope["method"] == "POST":
            return path == LEASES_PATH or _renewed(path) is not None
        return scope["method"] == "DELETE" and _released(path) is not None

    def path_of(self, scope: Scope) -> str:
        """Return the path of such a request in the API's form, with the names of its parameters."""
        if scope["method"] == "DELETE":
            return LEASE_PATH
        return LEASES_PATH if scope["path"] == LEASES_PATH else RENEW_PATH

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry out one request."""
        try:
            request = await self._parse(scope, receive)
            answer = await self.groups.ask(request)
        except LifesignError as error:
            await error_response(error)(scope, receive, send)
        except ClientDisconnect:
            return
        except Exception:  # noqa: BLE001 - one request must not end the server
            _log.exception("a request for a lease failed")
            await problem(500, "internal", "internal error, which was logged")(scope, receive, send)
        else:
            if isinstance(answer, LifesignError):
                await error_response(answer)(scope, receive, send)
            else:
                if answer.holder_incarnation:
                    # It is an agent: any other holder has no incarnation.
                    self._dispatcher.heard.note()
                await _show(request, answer, send)

    async def _parse(self, scope: Scope, receive: Receive) -> LeaseOperation:
        headers = headers_in(scope)
        digest = self._dispatcher.digest_of_caller(headers)
        self._dispatcher.check_rate(digest)
        permissions = _PERMISSIONS[self.path_of(scope)]

        def check(caller: Principal) -> None:
            require_one_of(caller, permissions)

        try:
            return await self._read(scope, receive, headers, digest, check)
        except LifesignError as fault:
            raise await self._dispatcher.refusal(digest, fault, check) from None

    async def _read(
        self,
        scope: Scope,
        receive: Receive,
        headers: Mapping[str, str],
        digest: bytes,
        check: Callable[[Principal], None],
    ) -> LeaseOperation:
        incarnation = incarnation_in(headers)
        path: str = scope["path"]
        if scope["method"] == "DELETE":
            return LeaseReleaseRequest(digest=digest, incarnation=incarnation, lease_id=_released(path) or "")
        lease_id = _renewed(path)
        if lease_id is None:
            wanted = await self._dispatcher.read(
                LeaseRequest, receive, headers, MAX_BODY_BYTES, digest=digest, check=check
            )
            return Acquire(
                digest=digest, incarnation=incarnation, resource=wanted.resource, ttl_s=wanted.ttl_seconds
            )
        renewal = await self._dispatcher.read(
            LeaseRenewal, receive, headers, MAX_BODY_BYTES, digest=digest, check=check
        )
        return Renew(
            digest=digest,
            incarnation=incarnation,
            lease_id=lease_id,
            token=renewal.fencing_token,
            ttl_s=renewal.ttl_seconds,
        )


def _renewed(path: str) -> str | None:
    """Return the id of the lease in a renewal's path."""
    if not (path.startswith(_BEFORE) and path.endswith(_AFTER)):
        return None
    return _one_part(path[len(_BEFORE) : -len(_AFTER)])


def _released(path: str) -> str | None:
    """Return the id of the lease that a path names."""
    return _one_part(path[len(_BEFORE) :]) if path.startswith(_BEFORE) else None


def _one_part(text: str) -> str | None:
    return text if text and "/" not in text else None


async def _show(operation: LeaseOperation, claim: Claim, send: Send) -> None:
    if isinstance(operation, LeaseReleaseRequest):
        await send({"type": "http.response.start", "status": 204, "headers": _HEADERS[1:]})
        await send({"type": "http.response.body", "body": b""})
        return
    content = lease_json(claim)
    headers, status = [*_HEADERS, (b"content-length", b"%d" % len(content))], 200
    if isinstance(operation, Acquire):
        headers, status = [*headers, (b"location", f"{LEASES_PATH}/{claim.lease_id}".encode())], 201
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
