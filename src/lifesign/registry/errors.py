"""Errors that the registry answers with; `error_statuses.py` maps each to a status and a code."""

from collections.abc import Collection, Mapping
from datetime import datetime
from math import ceil
from typing import Any

from lifesign.domain.text.counts import pluralize
from lifesign.domain.text.times import utc_text
from lifesign.errors import LifesignError


class AgentNotFound(LifesignError):
    """No agent has this id."""

    hint = "list the ids with `lifesign agents list` or GET /api/v1/agents"

    def __init__(self, agent_id: str) -> None:
        super().__init__(f"no agent is registered as {agent_id!r}")
        self.agent_id = agent_id


class AlreadyRegistered(LifesignError):
    """A living agent has this id, and the request does not supersede it."""

    def __init__(self, agent_id: str, status: str) -> None:
        super().__init__(
            f"{agent_id!r} is registered already and {status}; supersede: true ends this incarnation "
            "and starts a new one"
        )
        self.agent_id = agent_id
        self.status = status


class AgentGone(LifesignError):
    """The agent is dead or deregistered, or the incarnation has ended; it has to register again."""

    def __init__(self, agent_id: str, status: str, incarnation: int) -> None:
        super().__init__(f"{agent_id!r} is {status} in incarnation {incarnation}: register again")
        self.agent_id = agent_id
        self.status = status
        self.incarnation = incarnation


class VersionRequired(LifesignError):
    """The request must name the version of the record that it changes (If-Match)."""

    def __init__(self) -> None:
        super().__init__("If-Match with the record's etag, in its double quotes, is required")


class StaleVersion(LifesignError):
    """The record has another version than If-Match names.

    `is_clear` is false if the value of If-Match is not an ETag in double quotes, which matches no version.
    """

    def __init__(self, incarnation: int, version: int, etag: str, *, is_clear: bool = True) -> None:
        hint = "" if is_clear else "; If-Match requires an ETag as the record has it, in double quotes"
        super().__init__(f"the record is at {etag} now{hint}")
        self.incarnation = incarnation
        self.version = version
        self.etag = etag


class UnknownKey(LifesignError):
    """The request has no valid key."""

    hint = (
        "use a key of this registry; an administrator creates one: lifesign keys create --role ROLE --name "
        "NAME"
    )

    def __init__(self) -> None:
        super().__init__("a valid key is required (X-API-Key or Authorization: Bearer)")


class TooManyRequests(LifesignError):
    """The caller exceeded its rate limit; after `wait_s` seconds it may try again."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"too many requests: wait {max(1, ceil(wait_s))} s")
        self.wait_s = wait_s


class BodyTooLarge(LifesignError):
    """The request's body exceeds the limit."""

    def __init__(self, most: int, unit: str = "bytes") -> None:
        super().__init__(f"the body has more than {most} {unit}")
        self.most = most
        self.unit = unit


class BodyTooSlow(LifesignError):
    """The request's body did not arrive in time."""

    def __init__(self, most_s: float) -> None:
        super().__init__(f"the body did not arrive within {most_s:g} s")
        self.most_s = most_s


class BodyNotPlain(LifesignError):
    """A header of the request says that the body is not JSON, or that it is compressed.

    `header` is the name of that header, `expected` the value that the server accepts.
    """

    def __init__(self, header: str, expected: str) -> None:
        super().__init__(f"{header}: expected {expected}")
        self.header = header
        self.expected = expected


class BodyNotJson(LifesignError):
    """The request's body is not JSON (RFC 8259)."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the body is not JSON: {why}")


class TooManyCommands(LifesignError):
    """Too many commands wait for the agent."""

    def __init__(self, agent_id: str, most: int) -> None:
        super().__init__(f"{most} commands are waiting for {agent_id!r} already")
        self.agent_id = agent_id
        self.most = most


class TooManyStreams(LifesignError):
    """Too many clients follow the events of this server process."""

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} clients follow the events already: try again later, or another server")
        self.most = most


class LeaseHeld(LifesignError):
    """The resource is leased; `existing_lease` is the public part of the lease, as JSON."""

    def __init__(self, resource: str, existing_lease: Mapping[str, Any]) -> None:
        super().__init__(f"{resource} is leased already")
        self.resource = resource
        self.existing_lease = existing_lease


class AgentDraining(LifesignError):
    """The agent is draining and gets no new lease."""

    def __init__(self, agent_id: str) -> None:
        super().__init__(f"{agent_id!r} is draining: it gets no new leases")
        self.agent_id = agent_id


class LeaseNotFound(LifesignError):
    """No lease has this id.

    A caller that never held the lease, and may not end leases of others, gets the same answer.
    """

    def __init__(self, named: str) -> None:
        super().__init__(f"the caller has no lease with the id {named[:80]!r}")
        self.named = named[:80]


class LeaseOver(LifesignError):
    """The lease expired or was ended, and cannot be renewed; another holder may have the resource."""

    def __init__(self, lease_id: str, resource: str, end_reason: str) -> None:
        super().__init__(f"the lease {lease_id} of {resource} has ended: acquire a new one")
        self.lease_id = lease_id
        self.resource = resource
        self.end_reason = end_reason


class LeaseEndUncertain(LifesignError):
    """The end of the lease is uncertain, because the database's clock was or may have been set.

    It may have passed only by a clock that was set ahead, or would be moved after a clock was set back. The
    next sweep corrects the stored times: repeat the request.
    """

    def __init__(self, resource: str) -> None:
        super().__init__(
            f"the end of the lease of {resource} is uncertain: the registry stopped, or its clock was set; "
            "try again"
        )
        self.resource = resource


class StaleToken(LifesignError):
    """A newer fencing token was granted for this resource, or another holder has it.

    `current_token` is shown only to the holder and to callers that may read all leases.
    """

    def __init__(self, resource: str, token: int, current_token: int | None) -> None:
        if current_token is None:
            message = f"the caller holds no lease of {resource} with token {token}"
        else:
            message = f"{resource} was granted again, with token {current_token}; {token} is stale"
        super().__init__(message)
        self.resource = resource
        self.token = token
        self.current_token = current_token


class TokenNotIssued(LifesignError):
    """The fencing token is higher than the highest granted one, `current_token` (0 if none was granted)."""

    def __init__(self, resource: str, token: int, current_token: int) -> None:
        last = f"the last one is {current_token}" if current_token else "it was never leased"
        super().__init__(f"token {token} was never granted for {resource}: {last}")
        self.resource = resource
        self.token = token
        self.current_token = current_token


class NotHolder(LifesignError):
    """Another holder has the lease of this resource."""

    def __init__(self, resource: str) -> None:
        super().__init__(f"another holder has the lease of {resource}")
        self.resource = resource


class RunOfAnotherTask(LifesignError):
    """The run in the request belongs to another task."""

    def __init__(self, run_id: str, resource: str) -> None:
        super().__init__(f"{run_id} is not the run that holds {resource}")
        self.run_id = run_id
        self.resource = resource


class TokenRequired(LifesignError):
    """A guarded write requires a fencing token."""

    def __init__(self) -> None:
        super().__init__("the header X-Fencing-Token with the lease's fencing_token is required")


class StateNotFound(LifesignError):
    """The state was never written."""

    def __init__(self, resource: str) -> None:
        super().__init__(f"no state was written for {resource}")
        self.resource = resource


class KeyNotFound(LifesignError):
    """No key has this id."""

    hint = "list the ids with `lifesign keys list` or GET /api/v1/keys"

    def __init__(self, key_id: str) -> None:
        super().__init__(f"no key has the id {key_id[:80]!r}")
        self.key_id = key_id[:80]


class KeyEnded(LifesignError):
    """A revoked or expired key cannot be rotated."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"{key_id} is no longer valid: create a new key")
        self.key_id = key_id


class LastAdminKey(LifesignError):
    """This is the last key that may manage keys. Only the server's command line could create another one."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"{key_id} is the last valid admin key: create another one first")
        self.key_id = key_id


class NewerMarker(LifesignError):
    """A newer version of lifesign wrote the marker of the database; this version does not replace it."""

    def __init__(self, file: str, found: int, supported: int) -> None:
        super().__init__(
            f"the database marker {file} has format {found}, this version supports at most {supported}"
        )
        self.file = file
        self.found = found
        self.supported = supported
        self.hint = (
            "install the version that wrote the marker. To serve the database with this version, move the "
            "file away and run lifesign database adopt"
        )


class InvalidMarker(LifesignError):
    """The marker of a database cannot be used: it is damaged."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"{file} is not a marker that this version can read: {why}")
        self.file = file
        self.why = why


class DatabaseMismatch(LifesignError):
    """The database is not the one that this host served before, according to its marker.

    The marker is a file by which `serve` recognises its database. `mismatch` says in one clause what differs.

    `what` has the details, which only the operator gets.
    """

    def __init__(self, mismatch: str, what: str, file: str) -> None:
        super().__init__(f"{mismatch}: {what} (marker: {file})")
        self.mismatch = mismatch
        self.what = what
        self.file = file


class PoolNotFound(LifesignError):
    """No agent of this pool is alive."""

    def __init__(self, role_id: str) -> None:
        super().__init__(f"no agent of the pool {role_id[:80]!r} is alive")
        self.role_id = role_id[:80]


class PoolTooLarge(LifesignError):
    """The pool has more members than one request may change."""

    def __init__(self, role_id: str, most: int) -> None:
        super().__init__(f"the pool {role_id[:80]!r} has more than {most} members: change them one by one")
        self.role_id = role_id[:80]
        self.most = most


class TooManyAgents(LifesignError):
    """More agents match than one answer may contain."""

    def __init__(self, most: int) -> None:
        super().__init__(f"more than {most} agents match: use a filter, for example role_id")
        self.most = most


class WebhookNotFound(LifesignError):
    """No webhook has this id."""

    def __init__(self, webhook_id: str) -> None:
        super().__init__(f"there is no webhook {webhook_id!r}")
        self.webhook_id = webhook_id


class TooManyWebhooks(LifesignError):
    """The maximum number of webhooks is reached."""

    def __init__(self, most: int) -> None:
        super().__init__(f"there are {most} webhooks already: delete one first")
        self.most = most


class TargetNotFound(LifesignError):
    """No present or former target has this id."""

    hint = "list the ids with `lifesign targets list` or GET /api/v1/targets"

    def __init__(self, target_id: str) -> None:
        super().__init__(f"there is no target {target_id[:128]!r}")
        self.target_id = target_id[:128]


class InterfaceVersionNotFound(LifesignError):
    """No version of this number is kept of the target's published interface."""

    def __init__(self, target_id: str, version: int) -> None:
        super().__init__(f"no version {version} of the interface of {target_id!r} is kept")
        self.target_id = target_id
        self.version = version


class TargetGone(LifesignError):
    """The URL is no longer a target; `reason` says why."""

    def __init__(self, target_id: str, reason: str) -> None:
        super().__init__(f"{target_id!r} is no longer probed: {reason.replace('_', ' ')}")
        self.target_id = target_id
        self.reason = reason


MAX_CLASSES_SHOWN = 20
"""Maximum of network classes in an error."""


class NetworkClassNotFound(LifesignError):
    """There is no such network class, or no target of it has ever answered a prober.

    Targets of dead agents do not count. `classes` names the network classes that have other targets.
    """

    def __init__(self, name: str, existing: Collection[str]) -> None:
        shown = sorted(existing)[:MAX_CLASSES_SHOWN]
        others = f", and {len(existing) - len(shown)} more" if len(existing) > len(shown) else ""
        classes = f"there are {', '.join(shown)}{others}" if shown else "no class has such a target"
        super().__init__(f"no target of the network class {name[:128]!r} has ever answered; {classes}")
        self.name = name[:128]
        self.classes = ", ".join(shown)


class DirectoryNotFound(LifesignError):
    """No directory of this name was ever imported."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no directory {name[:128]!r}")
        self.name = name[:128]


class ImportNotFound(LifesignError):
    """The directory has no import of this id."""

    def __init__(self, name: str, import_id: str) -> None:
        super().__init__(f"{name[:128]!r} has no import {import_id[:64]!r}")
        self.name = name[:128]
        self.import_id = import_id[:64]


class ImportOver(LifesignError):
    """The import accepts no more pages: it is complete, or a later one has replaced it."""

    def __init__(self, import_id: str, state: str) -> None:
        super().__init__(f"the import {import_id!r} is {state}: start a new one")
        self.import_id = import_id
        self.state = state


class NothingSuspended(LifesignError):
    """No list of this directory is suspended, so there is nothing to confirm."""

    def __init__(self, name: str) -> None:
        super().__init__(f"nothing of {name[:128]!r} waits for confirmation")
        self.name = name[:128]


class OptOutNotFound(LifesignError):
    """The owner of this origin has not opted out."""

    def __init__(self, origin: str) -> None:
        super().__init__(f"{origin[:280]!r} never opted out")
        self.origin = origin[:280]


class TooMany(LifesignError):
    """The maximum number of `what` is reached, such as living workers of a prober, or tasks of a run."""

    def __init__(self, what: str, most: int, text: str = "") -> None:
        super().__init__(text or f"there are {most} {what} already")
        self.what = what
        self.most = most


class TooManyWorkers(TooMany):
    """As many worker processes as allowed already use this key to probe.

    A killed worker counts until its lease ends.
    """

    def __init__(self, most: int, frees_at: datetime) -> None:
        self.frees_at = utc_text(frees_at, "seconds")
        """When the first of their leases ends, unless its worker renews it."""
        text = (
            f"this key may have {pluralize(most, 'living worker')} at a time (see `lifesign keys "
            "limit`); the place of a worker that was killed becomes free once its lease ends, the "
            f"first at {self.frees_at}"
        )
        super().__init__("living workers of this key", most, text)


class TooManyClaims(LifesignError):
    """Too many claims wait for a task in this server process."""

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} callers wait for a task already: try again later, or another server")
        self.most = most


class TaskNotFound(LifesignError):
    """No task has this id."""

    hint = "list the ids with `lifesign tasks list` or GET /api/v1/tasks"

    def __init__(self, task_id: str) -> None:
        super().__init__(f"no task has the id {task_id[:80]!r}")
        self.task_id = task_id[:80]


class CallNotFound(LifesignError):
    """The run has no reservation for this call."""

    def __init__(self, call_id: str) -> None:
        super().__init__(f"nothing is reserved for a call {call_id[:80]!r} of this run")
        self.call_id = call_id[:80]


class CallOver(LifesignError):
    """The tool call was settled or released before, and this request contradicts that."""

    def __init__(self, call_id: str, state: str) -> None:
        super().__init__(f"the call {call_id!r} is {state} already")
        self.call_id = call_id
        self.state = state


class KeyReused(LifesignError):
    """An earlier request with the same idempotency key had another content.

    Keys of writes and tool calls are compared within a run, keys of new tasks within one creator's tasks.
    """

    def __init__(self, idempotency_key: str) -> None:
        super().__init__(f"the idempotency_key {idempotency_key!r} was used with another request")
        self.idempotency_key = idempotency_key
