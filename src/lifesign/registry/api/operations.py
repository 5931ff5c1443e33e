"""Which operations does the API have, what do they take, and what do they answer?

The routes, the checks of bodies and queries, the permissions and the OpenAPI document are all made
from `Operation`s; what is not said here is not there.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, BeforeValidator

from lifesign.domain.access.actor import KEY_ACTOR_PREFIX
from lifesign.domain.access.permissions import Permission, Principal
from lifesign.domain.net.target_address import Network
from lifesign.errors import LifesignError
from lifesign.registry.api.recent_totals import RecentTotals
from lifesign.registry.errors import StaleVersion, VersionRequired
from lifesign.registry.policies import DEFAULT_POLICIES, Policies
from lifesign.storage.engine.transaction import Transaction

T = TypeVar("T", bound=BaseModel)

_STRONG_TAG = re.compile(r'"[^"]*"')
"""RFC 9110 8.8.3; a weak one never matches (13.1.1)."""

MAX_BODY_BYTES = 65_536
"""Of a request, unless its operation says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, read and checked, on its way into a transaction."""

    caller: Principal
    path: Mapping[str, str]
    body: BaseModel | None
    query: BaseModel | None
    headers: Mapping[str, str]
    """By their names in lower case; see `headers_in`."""
    digest: bytes = field(repr=False)
    """Of the caller's key."""
    prefetched: Any = None
    """What the operation's `prefetch` has returned; None if it has none."""
    webhook_networks: Sequence[Network] = ()
    """Private networks that webhooks may lead to, by the server's settings."""
    sent_after_s: float | None = None
    """When it was sent at the earliest, by `time.monotonic`; see `pauses`."""
    totals: RecentTotals = field(default_factory=RecentTotals, repr=False)
    """What the server has counted a moment ago; where there is no server, nothing."""
    policies: Policies = DEFAULT_POLICIES
    """By which the server judges and suspends."""

    @property
    def agent_id(self) -> str:
        """The agent that the path names."""
        return self.path["agent_id"]

    @property
    def actor(self) -> str:
        """Who did it, as events name it: an agent by its id, anybody else by the id of the key."""
        return self.caller.agent_id or f"{KEY_ACTOR_PREFIX}{self.caller.key_id}"

    def body_as(self, model: type[T]) -> T:
        """The body; the operation says which model it is of."""
        assert isinstance(self.body, model)  # noqa: S101 - the operation's own model has checked it
        return self.body

    def query_as(self, model: type[T]) -> T:
        """The query; the operation says which model it is of."""
        assert isinstance(self.query, model)  # noqa: S101 - the operation's own model has checked it
        return self.query

    def check_version(self, incarnation: int, version: int, etag: str, *, is_required: bool) -> None:
        """Compare If-Match with a record's tag; StaleVersion, or VersionRequired if it is absent."""
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
    """What a function answers."""

    content: BaseModel | Mapping[str, Any] | Sequence[Any] | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


TransactionFunction = Callable[[Transaction, Call], OperationReply | LifesignError]
"""Raises an error to undo what it did, or returns one to have it committed all the same."""

Prefetch = Callable[[Transaction, Call], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method at one path."""

    method: str
    path: str
    summary: str
    """For people, in the OpenAPI document."""
    action: Permission | None
    """What the caller must be allowed to do: to the agent of the path, or to any one at all, in which case
    the function asks again once it knows to which. None: what `one_of` says."""
    function: TransactionFunction
    one_of: tuple[Permission, ...] = ()
    """Where several actions lead here: one of them the caller must be allowed to do, to any one at all; the
    function asks again."""
    is_write: bool = True
    prefetch: Prefetch | None = None
    """Reads, before the transaction begins, what takes so long that no other change must wait for it.

    The function finds it as `Call.prefetched`, and what it tells may have changed since."""
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    status: int = 200
    """Of the answer when all went well."""
    errors: tuple[int, ...] = ()
    """Which may be answered besides those that every operation has."""
    max_body_bytes: int = MAX_BODY_BYTES
    needs_version: bool = False
    """Whether If-Match is required."""
    headers: tuple[str, ...] = ()
    """Which else the function looks at, for the OpenAPI document."""


NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


SEPARATED_BY_COMMAS = BeforeValidator(_split)
"""Reads `a,b` in a query as two; spaces around a comma do not count, an empty part is a value like others."""
