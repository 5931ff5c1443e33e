"""Classification of the first answers of an MCP server.

Whether to ask for them at all, and the meaning of a failed discovery or a refused one.
"""

from collections.abc import Sequence
from typing import Final

from lifesign.domain.credentials.challenge import WITH_METADATA, read_challenges
from lifesign.domain.mcp.conversation import McpReply
from lifesign.domain.observation.results import REFUSED_LOGIN, ResultClass

READ_RESULTS: Final = frozenset({
    ResultClass.OK, ResultClass.NOT_AN_AGENT, ResultClass.HTTP_ERROR,
})  # fmt: skip
"""Results with a complete answer, whose body may be that of an MCP server."""
NO_SERVER: Final = "the answer is not that of an MCP server"
_SERVER_ERROR: Final = 500
"""Lowest status of a server's own fault."""


def may_be_server(card_result: ResultClass, card_status: int | None) -> bool:
    """Return whether a URL that has no agent card may be an MCP server, by the answer to a GET."""
    is_without_card = card_result in {ResultClass.NOT_AN_AGENT, ResultClass.HTTP_ERROR}
    return is_without_card and (card_status or _SERVER_ERROR) < _SERVER_ERROR


def is_login_of_server(result: ResultClass, challenges: Sequence[str]) -> bool:
    """Return whether the refusal of a POST looks like an MCP server's, by its `WWW-Authenticate` fields.

    The authorization of MCP requires that the challenge names the OAuth metadata (RFC 9728 5.1).
    """
    return result in REFUSED_LOGIN and any(
        each.scheme in WITH_METADATA and "resource_metadata" in each.parameters
        for each in read_challenges(challenges)
    )


def classify_failed_discovery(
    result: ResultClass, status: int | None, reason: str, reply: McpReply
) -> tuple[ResultClass, str]:
    """Return the result and reason of an invalid answer to `server/discover` or `initialize`.

    `result` and `reason` are those of the request.
    """
    if result not in READ_RESULTS:
        return result, reason
    if reply.code is not None:
        return ResultClass.INVALID_DOCUMENT, f"HTTP {status}: JSON-RPC error {reply.code}"
    if result is not ResultClass.OK:
        return result, reason
    return ResultClass.NOT_AN_AGENT, NO_SERVER
