"""Every error that lifesign raises on purpose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import Any, Final

from lifesign.domain.base.finding import Finding
from lifesign.domain.text.pluralize import pluralize


class AgentHealthError(Exception):
    """Root of the errors that lifesign raises on purpose."""

    hint: str = ""
    """What to do, in one line; empty if the message says it."""


class InvalidValue(AgentHealthError, ValueError):
    """A setting that the caller gave is wrong; `name` is the setting, `expected` what it takes.

    `given` is None where nothing was given, or nothing that may be shown.
    """

    def __init__(self, name: str, given: object, expected: str) -> None:
        got = "" if given is None else f"; got {given!r}"
        super().__init__(f"{name}: expected {expected}{got}")
        self.name = name
        self.given = given
        self.expected = expected


class InvalidDocument(AgentHealthError, ValueError):
    """A peer's health document breaks the rules; `faults` says where and why, never empty."""

    def __init__(self, faults: Sequence[Finding]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


class InvalidTransition(AgentHealthError):
    """The lifecycle has no way from `status` on `signal`."""

    def __init__(self, status: str, signal: str) -> None:
        super().__init__(f"an agent that is {status} cannot take the signal {signal}")
        self.status = status
        self.signal = signal


class StoreUnavailable(AgentHealthError):
    """The registry's database is away, full or too busy; asking later may help.

    A change that was under way then may have been made.
    """


class DatabaseReplaced(StoreUnavailable):
    """The running server's database was removed, replaced or set back. No change is accepted.

    Nothing since then was stored: the caller must repeat what it asked for once the server is healthy.
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}: no change is accepted")
        self.why = why


class AgentNotFound(AgentHealthError):
    """No agent has this id."""

    def __init__(self, agent_id: str) -> None:
        super().__init__(f"no agent is registered as {agent_id!r}")
        self.agent_id = agent_id


class AlreadyRegistered(AgentHealthError):
    """An agent of this id is alive, and nobody asked to supersede it."""

    def __init__(self, agent_id: str, status: str) -> None:
        super().__init__(
            f"{agent_id!r} is registered already and {status}; "
            "with supersede: true this life ends and a new one begins"
        )
        self.agent_id = agent_id
        self.status = status


class AgentGone(AgentHealthError):
    """The agent is dead or deregistered, or this life of it is over; it has to register again."""

    def __init__(self, agent_id: str, status: str, incarnation: int) -> None:
        super().__init__(f"{agent_id!r} is {status} in incarnation {incarnation}: register again")
        self.agent_id = agent_id
        self.status = status
        self.incarnation = incarnation


class VersionRequired(AgentHealthError):
    """The request has to say which version of the record it means to change (If-Match)."""

    def __init__(self) -> None:
        super().__init__("If-Match with the record's etag, in its double quotes, is required")


class StaleVersion(AgentHealthError):
    """The record is not at the version that the caller named; `is_clear` if that was an entity tag at all."""

    def __init__(self, incarnation: int, version: int, etag: str, *, is_clear: bool = True) -> None:
        hint = "" if is_clear else "; If-Match takes an etag as the record gives it, in double quotes"
        super().__init__(f"the record is at {etag} now{hint}")
        self.incarnation = incarnation
        self.version = version
        self.etag = etag


class UnknownKey(AgentHealthError):
    """No key was given, or none that is valid; which of the two is not told."""

    def __init__(self) -> None:
        super().__init__("a valid key is required (X-API-Key or Authorization: Bearer)")


class TooManyRequests(AgentHealthError):
    """The caller asked too often; `wait_s` seconds from now it may ask again."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"too many requests: wait {max(1, ceil(wait_s))} s")
        self.wait_s = wait_s


class BodyTooLarge(AgentHealthError):
    """The request's body exceeds what is read."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"the body is larger than {most_bytes} bytes")
        self.most_bytes = most_bytes


class BodyTooSlow(AgentHealthError):
    """The request's body did not arrive in time."""

    def __init__(self, most_s: float) -> None:
        super().__init__(f"the body did not arrive within {most_s:g} s")
        self.most_s = most_s


class BodyNotPlain(AgentHealthError):
    """The request's body is not JSON, or compressed, as `header` says; `expected` is what is read."""

    def __init__(self, header: str, expected: str) -> None:
        super().__init__(f"{header}: expected {expected}")
        self.header = header
        self.expected = expected


class BodyNotJson(AgentHealthError):
    """The request's body is no JSON (RFC 8259)."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the body is not JSON: {why}")


class InvalidRequest(AgentHealthError):
    """A body or a query says what it must not; `faults` says where and what was expected, never empty."""

    def __init__(self, faults: Sequence[Finding]) -> None:
        told = (f"{fault.pointer}: {fault.message}" if fault.pointer else fault.message for fault in faults)
        super().__init__("; ".join(told))
        self.faults = tuple(faults)


class InvalidResource(AgentHealthError, ValueError):
    """The caller named a resource that cannot be leased; `expected` says what a name looks like."""

    def __init__(self, resource: str, expected: str) -> None:
        super().__init__(f"not a resource: expected {expected}; got {resource[:80]!r}")
        self.resource = resource
        self.expected = expected


class TokensExhausted(AgentHealthError):
    """A resource was granted 2^32 - 1 times in `epoch`; raising the epoch makes room."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"no fencing token is left in epoch {epoch}: raise the epoch")
        self.epoch = epoch


class InvalidEvent(AgentHealthError, ValueError):
    """What is said to be an event is none; `sequence` is its place in the log, None if it has none."""

    def __init__(self, sequence: int | None, what: str) -> None:
        super().__init__(what if sequence is None else f"event {sequence}: {what}")
        self.sequence = sequence
        self.what = what


class BrokenChain(AgentHealthError):
    """The event log was changed after it was written, or something is missing at `sequence`."""

    def __init__(self, sequence: int, what: str) -> None:
        super().__init__(f"the log is broken at event {sequence}: {what}")
        self.sequence = sequence
        self.what = what


class Unreplayable(AgentHealthError):
    """The event at `sequence` contradicts the state that the events before it have led to."""

    def __init__(self, sequence: int, what: str) -> None:
        super().__init__(f"event {sequence} cannot have happened: {what}")
        self.sequence = sequence
        self.what = what


DEEDS: Final[Mapping[str, str]] = MappingProxyType({
    "register": "register agents",
    "re-register": "begin a new life of an agent",
    "beat": "send heartbeats",
    "drain": "drain agents",
    "deregister": "deregister agents",
    "update": "change what agents say of themselves",
    "lease": "acquire leases",
    "release_lease": "release leases",
    "write_state": "write states",
    "read_agent": "read agents' records",
    "set_maintenance": "begin or end a maintenance",
    "recheck": "have a target probed out of turn",
    "manage_opt_outs": "manage opt-outs",
    "override": "declare an agent's status",
    "release_hold": "end a hold",
    "erase": "erase agents",
})  # fmt: skip
"""What somebody wants to do, by `access.Action`, where its name is no sentence for people."""


class NotAllowed(AgentHealthError):
    """The caller's key is valid, and not for this; `agent_id` is whose record it asked for, if anybody's."""

    def __init__(self, role: str, action: str, agent_id: str | None) -> None:
        whose = "" if agent_id is None else f" (agent {agent_id!r})"
        super().__init__(f"this {role} key may not {DEEDS.get(action, action.replace('_', ' '))}{whose}")
        self.role = role
        self.action = action
        self.agent_id = agent_id


class TooManyCommands(AgentHealthError):
    """So many commands wait for the agent already."""

    def __init__(self, agent_id: str, most: int) -> None:
        super().__init__(f"{most} commands wait for {agent_id!r} already")
        self.agent_id = agent_id
        self.most = most


class TooManyStreams(AgentHealthError):
    """So many clients follow the events of this server process already."""

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} clients follow the events already: come again, or to another server")
        self.most = most


class SchemaOutdated(AgentHealthError):
    """The database is at an older revision than this version needs; `found` is None if it is empty."""

    def __init__(self, found: str | None, expected: str) -> None:
        where = "is empty" if found is None else f"is at revision {found}"
        super().__init__(f"the database {where}, revision {expected} is needed: run lifesign migrate")
        self.found = found
        self.expected = expected


class SchemaUnknown(AgentHealthError):
    """A newer version of lifesign has been at the database; this one would not understand it."""

    def __init__(self, found: str, newest: str) -> None:
        super().__init__(
            f"the database is at revision {found}, this version of lifesign knows none above {newest}: "
            "install the newer version"
        )
        self.found = found
        self.newest = newest


class ForeignDatabase(AgentHealthError):
    """The database has tables, and lifesign did not make them."""

    def __init__(self, tables: Sequence[str]) -> None:
        super().__init__(
            f"the database holds tables of another program: {', '.join(tables[:5])}; "
            "expected one of our own, or one without tables"
        )
        self.tables = tuple(tables)


@dataclass(frozen=True, slots=True)
class FileFault:
    """One place in a file that somebody wrote, and what was expected there."""

    line: int
    """From 1."""
    path: str
    """JSON pointer (RFC 6901) to the place; empty if it is no value's, such as a stray bracket."""
    expected: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.path + ': ' if self.path else ''}{self.expected}"


class InvalidFile(AgentHealthError, ValueError):
    """A file does not say what it should; `faults` in the order of lines, never empty.

    `file` is its name, empty where a text was read.
    """

    def __init__(self, faults: Sequence[FileFault], file: str = "") -> None:
        told = "; ".join(str(fault) for fault in faults)
        super().__init__(f"{file}: {told}" if file else told)
        self.faults = tuple(faults)
        self.file = file


class InvalidWorkflow(InvalidFile):
    """A workflow file does not declare agents as it should."""


class InvalidDefinition(InvalidFile):
    """A probe definition does not say what to probe as it should."""


class InvalidConfig(InvalidFile):
    """A file of settings does not say what it should."""


class InvalidTools(InvalidFile):
    """A tools file does not say which tools are offered, and at which price, as it should."""


class LeaseHeld(AgentHealthError):
    """Somebody has the resource; `existing_lease` is what everybody may know of the lease, as JSON."""

    def __init__(self, resource: str, existing_lease: Mapping[str, Any]) -> None:
        super().__init__(f"{resource} is leased already")
        self.resource = resource
        self.existing_lease = existing_lease


class AgentDraining(AgentHealthError):
    """The agent finishes what it has, and gets nothing new."""

    def __init__(self, agent_id: str) -> None:
        super().__init__(f"{agent_id!r} is draining: it gets no new leases")
        self.agent_id = agent_id


class LeaseNotFound(AgentHealthError):
    """The caller neither holds nor held a lease of this id, nor may it end one; perhaps there is none."""

    def __init__(self, named: str) -> None:
        super().__init__(f"no lease of yours has the id {named[:80]!r}")
        self.named = named[:80]


class LeaseOver(AgentHealthError):
    """The lease expired or was ended, and is not brought back; perhaps somebody else has the resource."""

    def __init__(self, lease_id: str, resource: str, end_reason: str) -> None:
        super().__init__(f"the lease {lease_id} of {resource} is over: acquire a new one")
        self.lease_id = lease_id
        self.resource = resource
        self.end_reason = end_reason


class StaleToken(AgentHealthError):
    """The resource was granted again since this fencing token was."""

    def __init__(self, resource: str, token: int, current_token: int) -> None:
        super().__init__(f"{resource} was granted again, with token {current_token}; {token} is stale")
        self.resource = resource
        self.token = token
        self.current_token = current_token


class TokenNotIssued(AgentHealthError):
    """The fencing token is higher than any that was granted for this resource; 0 if none was."""

    def __init__(self, resource: str, token: int, current_token: int) -> None:
        last = f"the last one is {current_token}" if current_token else "it was never leased"
        super().__init__(f"token {token} was never granted for {resource}: {last}")
        self.resource = resource
        self.token = token
        self.current_token = current_token


class NotHolder(AgentHealthError):
    """Another holder has the lease of this resource."""

    def __init__(self, resource: str) -> None:
        super().__init__(f"another holder has the lease of {resource}")
        self.resource = resource


class WrongRun(AgentHealthError):
    """The run that the request shows is not the one that has this task: it is another task's."""

    def __init__(self, run_id: str, resource: str) -> None:
        super().__init__(f"{run_id} is not the run that has {resource}")
        self.run_id = run_id
        self.resource = resource


class TokenRequired(AgentHealthError):
    """A guarded write has to come with its fencing token."""

    def __init__(self) -> None:
        super().__init__("X-Fencing-Token with the lease's fencing_token is required")


class StateNotFound(AgentHealthError):
    """Nobody has written this state."""

    def __init__(self, resource: str) -> None:
        super().__init__(f"nobody has written a state of {resource}")
        self.resource = resource


class KeyNotFound(AgentHealthError):
    """No key has this id."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"no key has the id {key_id[:80]!r}")
        self.key_id = key_id[:80]


class KeyEnded(AgentHealthError):
    """The key was revoked or is past its time: it has no successor."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"{key_id} is not valid any more: create a new key")
        self.key_id = key_id


class LastAdminKey(AgentHealthError):
    """Without this key nobody could manage keys any more, but on the server's own command line."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"{key_id} is the last valid admin key: create another one first")
        self.key_id = key_id


class BackupFailed(AgentHealthError):
    """A backup could not be written; what was in its place is still there."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"no backup was written to {file}: {why}")
        self.file = file
        self.why = why


class InvalidBackup(AgentHealthError):
    """A file is no backup, or not a whole one, or none that this version reads; nothing was changed."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"{file} cannot be restored: {why}")
        self.file = file
        self.why = why


class DatabaseNotEmpty(AgentHealthError):
    """Restoring would replace what the database holds."""

    def __init__(self, tables: Sequence[str]) -> None:
        super().__init__(f"the database is not empty ({', '.join(tables)}): --force replaces all of it")
        self.tables = tuple(tables)


class DatabaseInUse(AgentHealthError):
    """Somebody has the database open in which everything is to be replaced, or made anew."""

    def __init__(self, place: str) -> None:
        super().__init__(f"{place} is in use: stop the server, and whatever else has it open, first")
        self.place = place


class InvalidMarker(AgentHealthError):
    """The marker of a database cannot be used: it is damaged, or of a newer version."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"{file} is not a marker that this version reads: {why}")
        self.file = file
        self.why = why


class DatabaseMismatch(AgentHealthError):
    """The database is not the one that the marker on this host names; `mismatch` says why, in one clause.

    `what` has the details, for the operator alone.
    """

    def __init__(self, mismatch: str, what: str, file: str) -> None:
        super().__init__(f"{mismatch}: {what} (marker: {file})")
        self.mismatch = mismatch
        self.what = what
        self.file = file


class RowRefused(AgentHealthError):
    """The database does not take rows that it is to hold again, or has no such table."""

    def __init__(self, table: str) -> None:
        super().__init__(f"the rows of {table[:80]!r} do not fit the database")
        self.table = table[:80]


class PoolNotFound(AgentHealthError):
    """No agent of this pool is alive."""

    def __init__(self, role_id: str) -> None:
        super().__init__(f"no agent of the pool {role_id[:80]!r} is alive")
        self.role_id = role_id[:80]


class PoolTooLarge(AgentHealthError):
    """The pool has more members than one request may change."""

    def __init__(self, role_id: str, most: int) -> None:
        super().__init__(f"the pool {role_id[:80]!r} has more than {most} members: change them one by one")
        self.role_id = role_id[:80]
        self.most = most


class CannotListen(AgentHealthError):
    """The server cannot have this address and port."""

    def __init__(self, host: str, port: int, why: str) -> None:
        super().__init__(f"cannot listen on {host}, port {port}: {why}")
        self.host = host
        self.port = port
        self.why = why


class WebhookNotFound(AgentHealthError):
    """No webhook has this id."""

    def __init__(self, webhook_id: str) -> None:
        super().__init__(f"no webhook is known as {webhook_id!r}")
        self.webhook_id = webhook_id


class TooManyWebhooks(AgentHealthError):
    """There are so many webhooks already."""

    def __init__(self, most: int) -> None:
        super().__init__(f"there are {most} webhooks already: delete one first")
        self.most = most


class TargetNotFound(AgentHealthError):
    """Nothing that is or was to be probed has this id."""

    def __init__(self, target_id: str) -> None:
        super().__init__(f"no target is known as {target_id[:128]!r}")
        self.target_id = target_id[:128]


class TargetGone(AgentHealthError):
    """It is no target any more; `reason` says why."""

    def __init__(self, target_id: str, reason: str) -> None:
        super().__init__(f"{target_id!r} is probed no more: {reason.replace('_', ' ')}")
        self.target_id = target_id
        self.reason = reason


class NetworkClassNotFound(AgentHealthError):
    """No target of this network class is expected to answer."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no target of the network class {name[:128]!r} is expected to answer")
        self.name = name[:128]


class DirectoryNotFound(AgentHealthError):
    """No directory of this name was ever imported."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no directory is known as {name[:128]!r}")
        self.name = name[:128]


class ImportNotFound(AgentHealthError):
    """The directory has no import of this id."""

    def __init__(self, name: str, import_id: str) -> None:
        super().__init__(f"{name[:128]!r} has no import {import_id[:64]!r}")
        self.name = name[:128]
        self.import_id = import_id[:64]


class ImportOver(AgentHealthError):
    """The import takes no more pages: it is complete, or a later one has taken its place."""

    def __init__(self, import_id: str, state: str) -> None:
        super().__init__(f"the import {import_id!r} is {state}: begin a new one")
        self.import_id = import_id
        self.state = state


class NothingHeld(AgentHealthError):
    """Nothing of this directory waits to be confirmed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"nothing of {name[:128]!r} waits to be confirmed")
        self.name = name[:128]


class OptOutNotFound(AgentHealthError):
    """The owner of this origin never asked that nobody probe it."""

    def __init__(self, origin: str) -> None:
        super().__init__(f"{origin[:280]!r} never opted out")
        self.origin = origin[:280]


class TooMany(AgentHealthError):
    """There are so many of a kind already: `what` says of which."""

    def __init__(self, what: str, most: int) -> None:
        super().__init__(f"there are {most} {what} already")
        self.what = what
        self.most = most


class TooManyClaims(AgentHealthError):
    """So many wait for a task at this server process already."""

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} wait for a task already: come again, or to another server")
        self.most = most


class TaskNotFound(AgentHealthError):
    """No task has this id."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"no task has the id {task_id[:80]!r}")
        self.task_id = task_id[:80]


class InvalidTaskTransition(AgentHealthError):
    """A task that is `status` has no way on `signal`; a finished one has none at all."""

    def __init__(self, status: str, signal: str) -> None:
        where = {"queued": "in the queue", "review": "in review", "handoff": "with people"}.get(
            status, status
        )
        super().__init__(f"a task that is {where} cannot be {signal.replace('_', ' ')}")
        self.status = status
        self.signal = signal


class CommandFailed(AgentHealthError):
    """An agent's command, or that of a server of its tools, cannot be started."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the command cannot be started: {reason}")
        self.reason = reason


class BudgetExceeded(AgentHealthError):
    """It cannot be paid for: `asked` is more than the `left` of the envelope. It cost nothing."""

    def __init__(self, asked: Mapping[str, Any], left: Mapping[str, Any]) -> None:
        super().__init__(
            f"asked for {pluralize(asked['tokens'], 'token')} and {asked['usd']} USD; the envelope has "
            f"{pluralize(left['tokens'], 'token')} and {left['usd']} USD left"
        )
        self.asked_tokens, self.asked_usd = asked["tokens"], asked["usd"]
        self.left_tokens, self.left_usd = left["tokens"], left["usd"]


class CallNotFound(AgentHealthError):
    """This run has reserved nothing under this id."""

    def __init__(self, call_id: str) -> None:
        super().__init__(f"nothing is reserved for a call {call_id[:80]!r} of this run")
        self.call_id = call_id[:80]


class CallOver(AgentHealthError):
    """The call was settled or released before, and otherwise."""

    def __init__(self, call_id: str, state: str) -> None:
        super().__init__(f"the call {call_id!r} is {state} already")
        self.call_id = call_id
        self.state = state


class KeyReused(AgentHealthError):
    """A write of this run, or a task of this creator, had the same idempotency key and said otherwise."""

    def __init__(self, idempotency_key: str) -> None:
        super().__init__(f"the idempotency_key {idempotency_key!r} was used for something else")
        self.idempotency_key = idempotency_key


class NotLoggedIn(AgentHealthError):
    """Nobody is logged in to the dashboard, and reading is not open to everyone."""

    def __init__(self) -> None:
        super().__init__("log in first")


class UnknownHost(AgentHealthError):
    """A page of the dashboard was asked for under a name that is not the server's."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"this server is not known as {host[:80]!r}: use its address, or the name that its setting "
            "public_url (--public-url) says"
        )
        self.host = host


class ForgedForm(AgentHealthError):
    """A form was not sent from a page of the dashboard, or from one of a session that is over."""

    def __init__(self) -> None:
        super().__init__("this form is not from a page of this session: load the page anew, and try again")


class CrawlStopped(AgentHealthError):
    """A process of a crawl dies again and again."""

    def __init__(self, worker: str, deaths: int) -> None:
        super().__init__(f"{worker} died {deaths} times in a row, each time soon after its start")
        self.worker = worker
        self.deaths = deaths


class PassHeldUp(AgentHealthError):
    """A pass over all targets ended before its end: for `seconds`, nothing that it found could be stored."""

    def __init__(self, why: str, seconds: float) -> None:
        super().__init__(
            f"not all were probed: for {seconds:g} s nothing could be stored ({why}); what was stored before "
            "stays, and the same command goes on with those that are left"
        )
        self.why = why
        self.seconds = seconds


class InvalidAgent(AgentHealthError, TypeError):
    """A class or function cannot be the agent that it is declared to be; `where` names it."""

    def __init__(self, where: str, expected: str) -> None:
        super().__init__(f"{where}: expected {expected}")
        self.where = where
        self.expected = expected


class WorkRefused(AgentHealthError):
    """The agent takes no work now: it drains, has ended, or has too much waiting; nothing was begun."""

    def __init__(self, agent_id: str, why: str) -> None:
        super().__init__(f"{agent_id!r} takes no work: {why}")
        self.agent_id = agent_id
        self.why = why


class WorkDropped(AgentHealthError):
    """Work was begun and then given up: somebody else may be given it, so its result must not count."""

    def __init__(self, agent_id: str, why: str) -> None:
        super().__init__(f"{agent_id!r} dropped work in progress: {why}")
        self.agent_id = agent_id
        self.why = why
