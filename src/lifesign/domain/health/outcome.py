"""Interactions and their outcomes (draft 2 and 4.4).

The draft measures "successful interactions to total interaction attempts". Read literally, any scanner could
change an agent's status; by HTTP alone, an A2A agent whose model is down reports 1.0. Therefore every request
ends in one `Outcome`, and a counting profile decides whether the outcome counts as a response, as an error,
or not at all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from types import MappingProxyType

from lifesign.errors import InvalidValue


class Outcome(IntEnum):
    """Outcome of one request. The number is stored in window files: append only."""

    ANSWERED = 0
    """A valid answer, also one that refuses, asks a question or reports work in progress."""
    NOT_INSPECTED = 1
    """A 2xx answer that claims JSON or an event stream and could not be read. `Inspection` has the reason."""
    CALLER_FAULT = 2
    """The operation refused the request: most 4xx, JSON-RPC -32602, -32001 and similar codes."""
    RATE_LIMITED = 3
    """429: the agent has no capacity for this caller now."""
    NO_OPERATION = 4
    """The request reached no operation: 404 without a route, 405, 406, JSON-RPC -32700, -32600, -32601.

    For MCP also -32020 to -32022, and 400, 404 and 415 of the transport.
    """
    NOT_ADMITTED = 5
    """The request was stopped at the door: 401, 402, 403, 407."""
    SERVER_FAULT = 6
    """5xx, JSON-RPC -32603, -32006 and every unknown code, SSE `event: error`."""
    TASK_FAILED = 7
    """The A2A task of this request ended FAILED."""
    RAISED = 8
    """An exception left the application before its answer was complete."""
    UNFINISHED = 9
    """The application returned without finishing its answer, or its process was killed."""
    TIMED_OUT = 10
    """The first byte came after `timeout_seconds`, or a TimeoutError left the application."""
    MALFORMED = 11
    """A 2xx answer that is not the JSON that it claims, or a JSON-RPC stream with other data than JSON."""
    ABANDONED = 12
    """The caller left before the end, sooner than `timeout_seconds`."""
    ABANDONED_LATE = 13
    """The caller left before the end, after more than `timeout_seconds` of waiting."""
    EXCLUDED = 14
    """Never an interaction: card paths, HEAD, OPTIONS, paths that the settings exclude.

    Of MCP all that calls no tool, reads no resource, gets no prompt and completes no argument.
    """
    TOOL_ERROR = 15
    """The MCP tool that this request called returned an error: its own, or the caller's."""


# Looking up a member through its Enum takes 75 ns, and every request uses these two.
ANSWERED = Outcome.ANSWERED
TASK_FAILED = Outcome.TASK_FAILED


class CountingProfile(StrEnum):
    """Rule that decides which outcomes count for the response ratio, and as what."""

    LITERAL = "literal"
    """The draft to the letter: every 4xx is an error, so any scanner moves the ratio."""
    INTERACTIONS = "interactions"
    """Requests that reached an operation; the default."""
    SERVER_FAULTS = "server_faults"
    """Only faults of the agent are errors, so that no caller can change the ratio."""


def outcome_named(outcome: object) -> Outcome:
    """Return an outcome, given itself or by its name in lower case; InvalidValue for anything else."""
    if isinstance(outcome, str) and outcome.upper() in Outcome.__members__:
        return Outcome[outcome.upper()]
    if isinstance(outcome, Outcome):
        return outcome
    raise InvalidValue("outcome", outcome, "one of " + ", ".join(known.name.lower() for known in Outcome))


class Side(IntEnum):
    """Whether an outcome counts as a valid response or as an error."""

    RESPONSE = 0
    ERROR = 1


_R, _E, _N = Side.RESPONSE, Side.ERROR, None

# Columns: literal, interactions, server_faults. _N is not sampled.
_SIDES: Mapping[Outcome, tuple[Side | None, Side | None, Side | None]] = {
    Outcome.ANSWERED:       (_R, _R, _R),
    Outcome.NOT_INSPECTED:  (_N, _N, _N),
    Outcome.CALLER_FAULT:   (_E, _E, _N),
    Outcome.RATE_LIMITED:   (_E, _E, _N),
    Outcome.NO_OPERATION:   (_E, _N, _N),
    Outcome.NOT_ADMITTED:   (_E, _N, _N),
    Outcome.SERVER_FAULT:   (_E, _E, _E),
    Outcome.TASK_FAILED:    (_E, _E, _E),
    Outcome.RAISED:         (_E, _E, _E),
    Outcome.UNFINISHED:     (_E, _E, _E),
    Outcome.TIMED_OUT:      (_E, _E, _E),
    Outcome.MALFORMED:      (_E, _E, _E),
    Outcome.ABANDONED:      (_N, _N, _N),
    Outcome.ABANDONED_LATE: (_E, _E, _E),
    Outcome.EXCLUDED:       (_N, _N, _N),
    # SDKs turn an exception of a tool into such a result, and wrong arguments as well: see `window_status`.
    Outcome.TOOL_ERROR:     (_E, _E, _N),
}  # fmt: skip

SIDES: Mapping[CountingProfile, Mapping[Outcome, Side | None]] = MappingProxyType(
    {
        counting: MappingProxyType({outcome: sides[column] for outcome, sides in _SIDES.items()})
        for column, counting in enumerate(CountingProfile)
    }
)
"""The counting profiles, row by row; None is not sampled."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Number of valid answers, and of errors, in a window."""

    responses: int = 0
    errors: int = 0

    @property
    def total(self) -> int:
        """Number of all samples: `sample_count` of the draft."""
        return self.responses + self.errors

    @property
    def response_ratio(self) -> float | None:
        """Share of the samples that got a valid answer, 0.0 to 1.0 (draft 4.4).

        None without a sample: no evidence is not a ratio of zero.
        """
        return self.responses / self.total if self.total else None


def count_samples(outcome_counts: Sequence[int], counting: CountingProfile) -> Samples:
    """Return how many outcomes count as responses and as errors under a counting profile."""
    totals = {Side.RESPONSE: 0, Side.ERROR: 0}
    for outcome, side in SIDES[counting].items():
        if side is not None:
            totals[side] += outcome_counts[outcome]
    return Samples(totals[Side.RESPONSE], totals[Side.ERROR])


_OUTCOME_OF_STATUS: Mapping[int, Outcome] = {
    401: Outcome.NOT_ADMITTED,
    402: Outcome.NOT_ADMITTED,
    403: Outcome.NOT_ADMITTED,
    405: Outcome.NO_OPERATION,
    # A server refuses the form of the answer before an operation begins, as MCP servers do for a plain GET.
    406: Outcome.NO_OPERATION,
    407: Outcome.NOT_ADMITTED,
    429: Outcome.RATE_LIMITED,
}


def outcome_of_status(status: int, *, has_route: bool) -> Outcome:
    """Return the outcome of a complete answer by its HTTP status alone.

    `has_route`: whether a route of the application matched. A 404 of an endpoint is an answer to the caller's
    request; a 404 of the router never reached an operation.
    """
    if status < 400:
        return Outcome.ANSWERED
    if status >= 500:
        return Outcome.SERVER_FAULT
    if status == 404:
        return Outcome.CALLER_FAULT if has_route else Outcome.NO_OPERATION
    return _OUTCOME_OF_STATUS.get(status, Outcome.CALLER_FAULT)


_OUTCOME_OF_RPC_CODE: Mapping[int, Outcome] = {
    -32700: Outcome.NO_OPERATION,  # parse error
    -32600: Outcome.NO_OPERATION,  # invalid request
    -32601: Outcome.NO_OPERATION,  # method not found
    -32602: Outcome.CALLER_FAULT,  # invalid params
    -32001: Outcome.CALLER_FAULT,  # task not found
    -32002: Outcome.CALLER_FAULT,  # task not cancelable
    -32003: Outcome.CALLER_FAULT,  # push notifications unsupported
    -32004: Outcome.CALLER_FAULT,  # unsupported operation
    -32005: Outcome.CALLER_FAULT,  # content type not supported
    -32007: Outcome.CALLER_FAULT,  # no extended card
    -32008: Outcome.CALLER_FAULT,  # extension required
    -32009: Outcome.CALLER_FAULT,  # version not supported
}


def outcome_of_rpc_code(code: object) -> Outcome:
    """Return the outcome of a JSON-RPC error code; an unknown code is a server fault."""
    if not isinstance(code, int):
        return Outcome.SERVER_FAULT
    return _OUTCOME_OF_RPC_CODE.get(code, Outcome.SERVER_FAULT)


def outcome_of_exception(error: BaseException, *, is_from_outside: bool) -> Outcome:
    """Return the outcome of a request that ended with this exception of the application.

    `is_from_outside`: whether it was thrown into the application, whose caller no longer waits.
    """
    if is_from_outside:
        return Outcome.ABANDONED
    return Outcome.TIMED_OUT if isinstance(error, TimeoutError) else Outcome.RAISED
