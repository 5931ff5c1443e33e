"""By which codes does a tool refuse?"""

from enum import StrEnum


class ToolRefusalCode(StrEnum):
    """What programs may compare; docs/mcp.md and docs/tool-proxy.md say what each means.

    What the registry refuses has the registry's own code, where that is none of these.
    """

    BUSY = "busy"
    INVALID_ARGUMENT = "invalid_argument"
    NOT_ASKED = "not_asked"
    UNAVAILABLE = "orchestrator_unavailable"
    REFUSED = "refused"
    """By the registry, or what stands before it, without a code of its own."""
    INTERNAL_ERROR = "internal_error"

    # Of those who hold a task.
    STALE_TOKEN = "stale_token"  # noqa: S105 - the name of a code
    BUDGET_EXCEEDED = "budget_exceeded"
    KEY_REUSED = "idempotency_key_reused"
    NOT_ALLOWED = "not_allowed"

    # Of the tool proxy alone.
    LEASE_LOST = "lease_lost"
    RUN_ENDED = "run_ended"
    TOOL_MISSING = "tool_missing"
    UPSTREAM_UNAVAILABLE = "upstream_unavailable"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_REFUSED = "upstream_refused"
    ANSWER_TOO_LARGE = "answer_too_large"
    ANSWER_INVALID = "answer_invalid"
