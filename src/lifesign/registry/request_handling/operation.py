"""Operations of the API: their inputs and answers.

Routes, checks of bodies and queries, permissions and the OpenAPI document are all derived from `Operation`s.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, BeforeValidator

from lifesign.domain.access.event_actor import KEY_ACTOR_PREFIX
from lifesign.domain.access.permissions import Permission, Principal
from lifesign.domain.net.allowed_addresses import Network
from lifesign.errors import LifesignError
from lifesign.registry.errors import StaleVersion, VersionRequired
from lifesign.registry.policies import DEFAULT_POLICIES, Policies
from lifesign.registry.request_handling.recent_totals import RecentTotals
from lifesign.storage.engine.transaction import Transaction

T = TypeVar("T", bound=BaseModel)

_STRONG_TAG = re.compile(r'"[^"]*"')
"""RFC 9110 8.8.3; a weak one never matches (13.1.1)."""

MAX_BODY_BYTES = 65_536
"""Maximum size of a request, unless its operation has another limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, read and validated, for a transaction."""

    caller: Principal
    path: Mapping[str, str]
    body: BaseModel | None
    query: BaseModel | None
    headers: Mapping[str, str]
    """Headers by their names in lower case; see `headers_in`."""
    digest: bytes = field(repr=False)
    """Digest of the caller's key."""
    prefetched: Any = None
    """Result of the operation's `prefetch`; None without one."""
    webhook_networks: Sequence[Network] = ()
    """Private networks that webhooks may contact, by the server's settings."""
    sent_after_s: float | None = None
    """When it was sent at the earliest, by `time.monotonic`; see `pauses`."""
    totals: RecentTotals = field(default_factory=RecentTotals, repr=False)
    """Totals that the server counted recently; empty without a server."""
    policies: Policies = DEFAULT_POLICIES
    """Policies of the server's decisions."""

    @property
    def agent_id(self) -> str:
        """The agent that the path names."""
        return self.path["agent_id"]

    @property
    def actor(self) -> str:
        """Actor in events: the agent's id, or the id of the key."""
        return self.caller.agent_id or f"{KEY_ACTOR_PREFIX}{self.caller.key_id}"

    def body_as(self, model: type[T]) -> T:
        """Return the body, which is an instance of this model of the operation."""
        assert isinstance(self.body, model)  # noqa: S101 - the operation's own model has checked it
        return self.body

    def query_as(self, model: type[T]) -> T:
        """Return the query, which is an instance of this model of the operation."""
        assert isinstance(self.query, model)  # noqa: S101 - the operation's own model has checked it
        return self.query

    def check_version(self, incarnation: int, version: int, etag: str, *, is_required: bool) -> None:
        """Raise StaleVersion unless If-Match names a record's tag; VersionRequired if required and absent."""
        wanted = self.headers.get("if-match")
        if wanted is None:
            if is_required:
                raise VersionRequired
            return
        tags = {tag.strip() for tag in wanted.split(",")}
        if "*" not in tags and etag not in tags:
            is_clear = all(_STRONG_TAG.fullmatch(tag) for tag in tags)
            raise StaleVersion(incarnation, version, etag, is_clear=is_clear)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationReply:
    """Answer of an operation's function."""

    content: BaseModel | Mapping[str, Any] | Sequence[Any] | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


TransactionFunction = Callable[[Transaction, Call], OperationReply | LifesignError]
"""Raises an error to roll back, or returns one to commit its changes nevertheless."""

Prefetch = Callable[[Transaction, Call], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of the API: one method at one path."""

    method: str
    path: str
    summary: str
    """Summary for people, in the OpenAPI document."""
    action: Permission | None
    """Permission that the caller needs: for the agent of the path, or for any agent.

    For any agent, the function checks again once it knows the agent. None: see `one_of`.
    """
    function: TransactionFunction
    needs_any_record: bool = False
    """Whether the permission must cover all records: the function requires it for no particular agent."""
    one_of: tuple[Permission, ...] = ()
    """Alternative permissions: the caller needs one of them for any agent; the function checks again."""
    is_write: bool = True
    prefetch: Prefetch | None = None
    """Slow reads that run before the transaction begins, so that no other change waits for them.

    The function gets the result as `Call.prefetched`. The facts in it may have changed since.
    """
    body: type[BaseModel] | None = None
    example: Mapping[str, Any] | None = None
    """Example of a body, for the OpenAPI document."""
    query: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    status: int = 200
    """Status of a successful answer."""
    answer_statuses: tuple[int, ...] = ()
    """Further statuses of answers whose body is an `answer` and no error."""
    errors: tuple[int, ...] = ()
    """Possible error statuses besides those that every operation has."""
    max_body_bytes: int = MAX_BODY_BYTES
    needs_version: bool = False
    """Whether If-Match is required."""
    headers: tuple[str, ...] = ()
    """Further headers that the function reads, for the OpenAPI document."""


NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


SEPARATED_BY_COMMAS = BeforeValidator(_split)
"""Reads `a,b` in a query as two; spaces around a comma do not count, an empty part is a value like others."""
