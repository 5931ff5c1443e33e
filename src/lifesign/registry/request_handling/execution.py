"""Execution of a request: from its parts to a function in one transaction, and to the response."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json, to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from lifesign.domain.access.permissions import (
    Principal,
    digest_of,
    is_valid,
    looks_like_key,
    may_for_any_agent,
    require,
    require_one_of,
)
from lifesign.domain.access.rate_limit import RateLimiter
from lifesign.domain.common.finding import Finding, json_pointer
from lifesign.domain.errors import InvalidRequest, NotAllowed
from lifesign.domain.files.validation_messages import known_expectation
from lifesign.domain.net.allowed_addresses import Network
from lifesign.domain.parsing.bounded_json import has_more_marks
from lifesign.domain.parsing.json_limits import has_infinity, repeated_member
from lifesign.errors import LifesignError
from lifesign.registry.errors import BodyNotJson, BodyNotPlain, BodyTooLarge, TooManyRequests, UnknownKey
from lifesign.registry.policies import DEFAULT_POLICIES, Policies
from lifesign.registry.request_handling.body_timeout import BodyTime
from lifesign.registry.request_handling.error_statuses import error_response
from lifesign.registry.request_handling.heard_agents import HeardAgents
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.request_handling.recent_totals import RecentTotals
from lifesign.registry.request_handling.stall_detector import StallDetector
from lifesign.registry.request_handling.work_counts import WorkCounts, WorkKind
from lifesign.serving.error_body import problem
from lifesign.storage.engine.transaction import Clock, Database, Transaction
from lifesign.storage.keys import key_rows

MAX_FAULTS = 20
"""Maximum of faults in an answer."""
MAX_LISTED_FAULTS = 5_000
"""Maximum of faults that are listed to find the first: pydantic lists all or none, at 20 µs each."""
MAX_BODY_MARKS = 500_000
"""Maximum number of `{`, `[` and `,` in a body: each costs as much time as 100 bytes of text.

A thousand observations with 8 paths, 5 assertions and a memory each have 250,000, and their interfaces
150,000.
"""
MAX_UNAUTHORIZED_BYTES = 16_384
"""Maximum size of a body that is kept, and parsed, before the key is checked: anyone can invent a key."""
MAX_INCARNATION_DIGITS = 18
MAX_LENGTH_DIGITS = 18

_JSON = "application/json"

_log = logging.getLogger("lifesign.registry")

Model = TypeVar("Model", bound=BaseModel)


class OperationDispatcher:
    """Reads and validates requests, runs their functions, and creates the responses."""

    def __init__(
        self,
        database: Database,
        limiter: RateLimiter,
        monotonic_s: Clock,
        webhook_networks: Sequence[Network] = (),
        counts: WorkCounts | None = None,
        *,
        policies: Policies = DEFAULT_POLICIES,
        heard: HeardAgents | None = None,
    ) -> None:
        self.database = database
        self._counts = counts or WorkCounts()
        self._policies = policies
        self.heard = heard or HeardAgents(monotonic_s)
        self._webhook_networks = webhook_networks
        self._totals = RecentTotals()
        self._limiter = limiter
        self._monotonic_s = monotonic_s
        self._body_time = BodyTime()
        self.pauses = StallDetector()

    async def answer(self, operation: Operation, request: Request) -> Response:
        """Execute the request in one transaction, together with the check of the key."""
        try:
            reply = await self._reply(operation, request)
            return error_response(reply) if isinstance(reply, LifesignError) else _response(reply)
        except LifesignError as error:
            return error_response(error)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:  # noqa: BLE001 - one request must not end the server
            # A defect of ours: the caller gets no details, the log all of them.
            _log.exception("%s %s failed", operation.method, operation.path)
            return problem(500, "internal", "internal error, which was logged")

    async def _reply(self, operation: Operation, request: Request) -> OperationReply | LifesignError:
        sent_after_s = self.pauses.sent_after_s(time.monotonic())
        headers = headers_in(request.scope)
        digest = self.digest_of_caller(headers)
        self.check_rate(digest)

        def check(caller: Principal) -> None:
            check_permission(caller, operation, request.path_params)

        body, query = None, None
        try:
            if operation.body is not None:
                raw = await self._read_json(request, operation.max_body_bytes, digest=digest, check=check)
                body = checked(operation.body, raw)
            if operation.query is not None:
                query = checked_query(operation.query, request)
        except LifesignError as fault:
            return await self.refusal(digest, fault, check)

        def authorize(transaction: Transaction, seen: Any) -> Call:
            caller = authenticate(transaction, digest)
            check(caller)
            if caller.agent_id is not None:
                self.heard.note()
            return Call(
                caller=caller,
                path=request.path_params,
                body=body,
                query=query,
                headers=headers,
                digest=digest,
                prefetched=seen,
                webhook_networks=self._webhook_networks,
                sent_after_s=sent_after_s,
                totals=self._totals,
                policies=self._policies,
            )

        seen: Any = None
        if (look := operation.prefetch) is not None:
            seen = await self.database.read(
                lambda transaction: look(transaction, authorize(transaction, None))
            )

        def function(transaction: Transaction) -> OperationReply | LifesignError:
            call = authorize(transaction, seen)
            reply = operation.function(transaction, call)
            if call.caller.agent_id is not None and transaction.appended:
                # The end of the log is locked now. An erasure of the agent that came first has removed the
                # key; one that follows finds all events of this transaction.
                _check_left(transaction, digest)
            return reply

        return await (self.database.write(function) if operation.is_write else self.database.read(function))

    def digest_of_caller(self, headers: Mapping[str, str]) -> bytes:
        """Return the digest of the key that a request carries; UnknownKey if it carries none."""
        key = headers.get("x-api-key")
        if key is None:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            key = token.strip() if scheme.lower() == "bearer" else ""
        if not looks_like_key(key):
            raise UnknownKey
        return digest_of(key)

    def check_rate(self, digest: bytes) -> None:
        """Count one request of this key; TooManyRequests above its rate limit."""
        wait_s = self._limiter.wait_s(digest, self._monotonic_s())
        if wait_s > 0:
            self._counts.note(WorkKind.RATE_LIMITED)
            raise TooManyRequests(wait_s)

    async def refusal(
        self, digest: bytes, fault: LifesignError, check: Callable[[Principal], None]
    ) -> LifesignError:
        """Return the error for a faulty request; unauthorised callers learn nothing about the fault.

        `check` raises NotAllowed for callers without the permission. Valid requests are not checked here, but
        in their function's own transaction.
        """
        try:
            await self.database.read(lambda transaction: check(authenticate(transaction, digest)))
        except LifesignError as refusal:
            return refusal
        return fault

    async def read(
        self,
        model: type[Model],
        receive: Receive,
        headers: Mapping[str, str],
        most: int,
        *,
        digest: bytes,
        check: Callable[[Principal], None],
    ) -> Model:
        """Return a request's body as an instance of the model.

        Raises BodyNotJson, InvalidRequest, and the errors of `read_body`.
        """
        body = await self.read_body(receive, headers, most, digest=digest, check=check)
        read: Model | InvalidRequest
        try:
            read = model.model_validate_json(body)
        except ValidationError as error:
            faults = faults_of(error)
            if faults[0].name == "json_invalid":
                raise BodyNotJson(faults[0].message) from None
            read = InvalidRequest(faults)
        _check_members(body)
        if isinstance(read, InvalidRequest):
            raise read
        return read

    async def read_body(
        self,
        receive: Receive,
        headers: Mapping[str, str],
        most_bytes: int,
        *,
        digest: bytes,
        check: Callable[[Principal], None],
    ) -> bytes:
        """Return the complete body of a request.

        Before more than MAX_UNAUTHORIZED_BYTES are kept, the key is checked: UnknownKey, and what `check`
        raises. BodyNotPlain if it has another type or encoding than plain JSON, BodyTooLarge as soon as it
        exceeds the limit or if it has too many members, BodyTooSlow if it takes too long, starlette's
        ClientDisconnect if the caller leaves.
        """
        _check_plain(headers)
        check_length(headers, most_bytes)
        body = bytearray()
        is_more = True
        is_authorized = most_bytes <= MAX_UNAUTHORIZED_BYTES
        with self._body_time:
            while is_more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                body += message.get("body", b"")
                is_more = message.get("more_body", False)
                if len(body) > most_bytes:
                    raise BodyTooLarge(most_bytes)
                if len(body) > MAX_UNAUTHORIZED_BYTES and not is_authorized:
                    await self.database.read(lambda transaction: check(authenticate(transaction, digest)))
                    is_authorized = True
        whole = bytes(body)
        if has_more_marks(whole, MAX_BODY_MARKS):
            raise BodyTooLarge(MAX_BODY_MARKS, "objects, arrays and members")
        return whole

    async def _read_json(
        self, request: Request, most_bytes: int, *, digest: bytes, check: Callable[[Principal], None]
    ) -> object:
        """Return a request's body, parsed; BodyNotJson for NaN, endless nesting and 1e400 too."""
        try:
            headers = headers_in(request.scope)
            body = await self.read_body(request.receive, headers, most_bytes, digest=digest, check=check)
            parsed = from_json(body, allow_inf_nan=False, cache_strings="keys")
        except ValueError as error:
            raise BodyNotJson(str(error)) from None
        if has_infinity(parsed):
            # The stored value would differ from the sent one.
            raise BodyNotJson("a number is too large to be stored")
        _check_members(body)
        return parsed


def _check_left(transaction: Transaction, digest: bytes) -> None:
    """Raise UnknownKey if a key was removed since the transaction began; only PostgreSQL permits it."""
    if transaction.is_postgresql and key_rows.find(transaction, digest) is None:
        raise UnknownKey


def authenticate(transaction: Transaction, digest: bytes) -> Principal:
    """Return the owner of a key; UnknownKey if it does not exist, is revoked, or has expired."""
    stored = key_rows.find(transaction, digest)
    if stored is None or not is_valid(stored, digest, transaction.now_s):
        raise UnknownKey
    return Principal(stored.key_id, stored.role, stored.agent_id)


def check_permission(caller: Principal, operation: Operation, path: Mapping[str, str]) -> None:
    """Raise NotAllowed if the caller lacks the permission for the agent of the path, or for any agent."""
    if operation.action is None:
        require_one_of(caller, operation.one_of)
        return
    agent_id = path.get("agent_id")
    if agent_id is not None:
        require(caller, operation.action, agent_id)
    elif not may_for_any_agent(caller, operation.action):
        raise NotAllowed(caller.role, operation.action, None)


def check_length(headers: Mapping[str, str], most_bytes: int) -> None:
    """Raise BodyTooLarge if a request declares a body above the limit."""
    declared = headers.get("content-length")
    if declared is not None and declared.isdecimal() and int(declared[:MAX_LENGTH_DIGITS]) > most_bytes:
        raise BodyTooLarge(most_bytes)


def _check_plain(headers: Mapping[str, str]) -> None:
    """Refuse a body with another declared type or encoding, instead of guessing its meaning."""
    content_type = headers.get("content-type")
    if content_type is not None and content_type != _JSON:
        essence = content_type.partition(";")[0].strip().lower()
        if essence != _JSON and not essence.endswith("+json"):
            raise BodyNotPlain("Content-Type", _JSON)
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise BodyNotPlain("Content-Encoding", "none")


def _check_members(body: bytes) -> None:
    """Refuse a JSON body if an object in it contains a name twice."""
    if (place := repeated_member(body)) is not None:
        raise InvalidRequest(
            [Finding("repeated", json_pointer(*place), "expected at most once in its object")]
        )


def headers_in(scope: Scope) -> dict[str, str]:
    """Return a request's headers by their names in lower case; those of one name are joined (RFC 9110 5.3).

    So two keys are no valid key, and two tokens no number: the result must not depend on the reader.
    """
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    if len(headers) < len(scope["headers"]):
        several: dict[str, list[str]] = {name: [] for name in headers}
        for name, value in scope["headers"]:
            several[name.decode("latin-1")].append(value.decode("latin-1"))
        headers = {name: ", ".join(values) for name, values in several.items()}
    return headers


def incarnation_in(headers: Mapping[str, str]) -> int | None:
    """Return the incarnation that an agent states, None if it states none."""
    text = headers.get("x-agent-incarnation")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_INCARNATION_DIGITS):
        expected = "X-Agent-Incarnation: expected a whole number"
        raise InvalidRequest([Finding("invalid_incarnation", "", expected)])
    return int(text)


def checked(model: type[BaseModel], given: object) -> BaseModel:
    """Return the value as an instance of the model; InvalidRequest has all faults."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise InvalidRequest(faults_of(error)) from None


def checked_query(model: type[BaseModel], request: Request) -> BaseModel:
    """Return the query as the model's instance; InvalidRequest, also for a repeated or an empty member."""
    given = query_of(request)
    repeated = [name for name, value in given.items() if isinstance(value, list)][:MAX_FAULTS]
    if repeated:
        expected = "expected at most once; separate several values by commas"
        raise InvalidRequest([Finding("repeated", json_pointer(name), expected) for name in repeated])
    empty = [name for name in model.model_fields if given.get(name) == ""]
    if empty:
        expected = "expected a value; omit the parameter if you have none"
        raise InvalidRequest([Finding("empty", json_pointer(name), expected) for name in empty])
    return checked(model, given)


def faults_of(error: ValidationError) -> list[Finding]:
    """Return where each fault is and what was expected, without the value: it may be a secret.

    Only a value of a closed list decides which of the allowed values are named.
    """
    if (count := error.error_count()) > MAX_LISTED_FAULTS:
        return [
            Finding("too_many_faults", "", f"expected fewer faults than {MAX_LISTED_FAULTS}; found {count}")
        ]
    faults = error.errors(include_url=False)[:MAX_FAULTS]
    return [Finding(fault["type"], json_pointer(*fault["loc"]), _words_of(fault)) for fault in faults]


def _words_of(fault: ErrorDetails) -> str:
    expected = known_expectation(fault)
    return fault["msg"] if expected is None else f"expected {expected}"


def query_of(request: Request) -> dict[str, Any]:
    """Return the members of the query; a repeated name gives a list, which every model refuses."""
    members: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        members[name] = [members[name], value] if name in members else value
    return members


def _response(reply: OperationReply) -> Response:
    headers = {"Cache-Control": "no-store", **reply.headers}
    if reply.content is None:
        return Response(status_code=reply.status, headers=headers)
    if isinstance(reply.content, BaseModel):
        content = reply.content.model_dump_json(exclude_none=True).encode()
    else:
        content = to_json(reply.content)
    return Response(content, reply.status, headers, "application/json")
