"""Codes of refusals by tools."""

from enum import StrEnum


class ToolRefusalCode(StrEnum):
    """Code for programs; docs/mcp.md and docs/tool-proxy.md explain each.

    A refusal by the registry has the registry's own code, unless one of these applies.
    """

    BUSY = "busy"
    INVALID_ARGUMENT = "invalid_argument"
    NOT_ASKED = "not_asked"
    UNAVAILABLE = "orchestrator_unavailable"
    REFUSED = "refused"
    """Refused by the registry, or a proxy before it, without a code."""
    INTERNAL_ERROR = "internal_error"

    # For holders of a task.
    STALE_TOKEN = "stale_token"  # noqa: S105 - the name of a code
    BUDGET_EXCEEDED = "budget_exceeded"
    KEY_REUSED = "idempotency_key_reused"
    NOT_ALLOWED = "not_allowed"

    # Only of the tool proxy.
    LEASE_LOST = "lease_lost"
    RUN_ENDED = "run_ended"
    TOOL_MISSING = "tool_missing"
    UPSTREAM_UNAVAILABLE = "upstream_unavailable"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_REFUSED = "upstream_refused"
    ANSWER_TOO_LARGE = "answer_too_large"
    ANSWER_INVALID = "answer_invalid"
