"""Errors of the rules: a value, a file, an event or a transition that they refuse."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from lifesign.domain.common.finding import Finding
from lifesign.domain.text.counts import pluralize
from lifesign.domain.text.units import unit_hint
from lifesign.errors import LifesignError


class InvalidDocument(LifesignError, ValueError):
    """A peer's health document breaks the rules.

    `faults` lists each fault with place and reason, and is never empty.
    """

    def __init__(self, faults: Sequence[Finding]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


class InvalidTransition(LifesignError):
    """An agent with this status cannot take this signal, by the table of statuses."""

    def __init__(self, status: str, signal: str) -> None:
        super().__init__(f"an agent with the status {status} cannot get the signal {signal}")
        self.status = status
        self.signal = signal
        if status in {"dead", "deregistered"}:
            self.hint = "the agent is not alive; it is active again once it registers"


_NOT_ABOUT_A_VALUE: Final = frozenset({"missing", "extra_forbidden", "repeated"})
"""Names of faults that no other value of the member mends."""


class InvalidRequest(LifesignError):
    """A request's body or query is invalid. `faults` (at least one) say where, and what was expected."""

    def __init__(self, faults: Sequence[Finding]) -> None:
        texts = (f"{fault.pointer}: {fault.message}" if fault.pointer else fault.message for fault in faults)
        super().__init__("; ".join(texts))
        self.faults = tuple(faults)
        self.hint = unit_hint(fault.pointer for fault in faults if fault.name not in _NOT_ABOUT_A_VALUE)


class InvalidResource(LifesignError, ValueError):
    """A lease was requested for an invalid resource name. `expected` describes valid names."""

    def __init__(self, resource: str, expected: str) -> None:
        super().__init__(f"not a resource: expected {expected}; got {resource[:80]!r}")
        self.resource = resource
        self.expected = expected


class TokensExhausted(LifesignError):
    """The resource has no fencing token left: 2^32 - 1 were granted in the epoch `epoch`.

    `lifesign restore` and `lifesign database adopt` begin a new epoch.
    """

    def __init__(self, epoch: int) -> None:
        super().__init__(f"no fencing token is left in epoch {epoch}: raise the epoch")
        self.epoch = epoch


class InvalidEvent(LifesignError, ValueError):
    """A value is not a valid event; `sequence` is its position in the log, None if it has none."""

    def __init__(self, sequence: int | None, what: str) -> None:
        super().__init__(what if sequence is None else f"event {sequence}: {what}")
        self.sequence = sequence
        self.what = what


class BrokenChain(LifesignError):
    """The hash chain of the event log breaks at `sequence`: an event was changed or is missing."""

    def __init__(self, sequence: int, what: str) -> None:
        super().__init__(f"the log is broken at event {sequence}: {what}")
        self.sequence = sequence
        self.what = what


class ImpossibleEvent(LifesignError):
    """The event at `sequence` of the log contradicts the state that results from the earlier events."""

    def __init__(self, sequence: int, what: str) -> None:
        super().__init__(f"event {sequence} cannot have happened: {what}")
        self.sequence = sequence
        self.what = what


ACTION_PHRASES: Final[Mapping[str, str]] = MappingProxyType({
    "register": "register agents",
    "re-register": "start a new incarnation of an agent",
    "heartbeat": "send heartbeats",
    "drain": "drain agents",
    "deregister": "deregister agents",
    "update": "change what agents report about themselves",
    "lease": "acquire leases",
    "release_lease": "release leases",
    "write_state": "write states",
    "read_agent": "read agents' records",
    "set_maintenance": "start or end a maintenance",
    "recheck": "request a probe of a target",
    "manage_opt_outs": "manage opt-outs",
    "override": "declare an agent's status",
    "release_suspension": "end a suspension of verdicts",
    "erase": "erase agents",
})  # fmt: skip
"""Texts for permissions whose names are not readable."""


class NotAllowed(LifesignError):
    """The caller's key is valid but lacks this permission; `agent_id` is the requested record, if any."""

    def __init__(self, role: str, action: str, agent_id: str | None) -> None:
        whose = "" if agent_id is None else f" (agent {agent_id!r})"
        super().__init__(
            f"this {role} key may not {ACTION_PHRASES.get(action, action.replace('_', ' '))}{whose}"
        )
        self.role = role
        self.action = action
        self.agent_id = agent_id


@dataclass(frozen=True, slots=True)
class FileFault:
    """A fault in a file: its position, and what was expected there."""

    line: int
    """Line number, from 1."""
    path: str
    """JSON pointer (RFC 6901) of the place; empty if the place is not a value, such as a stray bracket."""
    expected: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.path + ': ' if self.path else ''}{self.expected}"


class InvalidFile(LifesignError, ValueError):
    """A file is invalid. `faults`, at least one, are in the order of the file's lines.

    `file` is its name, empty if a text was read instead of a file.
    """

    def __init__(self, faults: Sequence[FileFault], file: str = "") -> None:
        text = "; ".join(str(fault) for fault in faults)
        super().__init__(f"{file}: {text}" if file else text)
        self.faults = tuple(faults)
        self.file = file
        self.hint = unit_hint(fault.path for fault in faults if fault.expected.startswith("expected "))


class InvalidWorkflow(InvalidFile):
    """A workflow file is invalid."""


class InvalidTaskTransition(LifesignError):
    """A task with this status cannot take this signal, by the table of task states.

    The table allows no signal for a finished task.
    """

    def __init__(self, status: str, signal: str) -> None:
        where = {"queued": "in the queue", "review": "in review", "handoff": "with people"}.get(
            status, status
        )
        super().__init__(f"a task that is {where} cannot be {signal.replace('_', ' ')}")
        self.status = status
        self.signal = signal


class BudgetExceeded(LifesignError):
    """A call costs `asked`, more than is `left` of the task's budget. Nothing was charged.

    With `overrun`, earlier calls have cost so much more than the budget.
    """

    def __init__(
        self, payload: Mapping[str, Any], left: Mapping[str, Any], overrun: Mapping[str, Any] | None = None
    ) -> None:
        after = "" if overrun is None else f", after an overrun of {_amount(overrun)}"
        super().__init__(f"requested {_amount(payload)}; the budget has {_amount(left)} left{after}")
        self.asked_tokens, self.asked_usd = payload["tokens"], payload["usd"]
        self.left_tokens, self.left_usd = left["tokens"], left["usd"]


def _amount(amount: Mapping[str, Any]) -> str:
    return f"{pluralize(amount['tokens'], 'token')} and {amount['usd']} USD"
