"""Classification of an interface's answer to a GET.

An A2A interface accepts POST (JSON-RPC, HTTP+JSON). By default the prober sends no message. It sends a GET,
which no interface supports, and recognises an interface by its refusal. Statuses are those of RFC 9110.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lifesign.domain.observation.results import ResultClass

_OK, _GATED = ResultClass.OK, ResultClass.GATED

# Possible answers of an interface to a GET. A status that is absent here is classified by its hundreds.
ANSWERS: Final[Mapping[int, tuple[ResultClass, str]]] = MappingProxyType({
    304: (ResultClass.HTTP_ERROR, "unchanged, although nothing was known before"),
    400: (_OK, "it expects a message in the GET request"),
    401: (_GATED, "it asks for credentials"),
    402: (_GATED, "it asks for money"),
    403: (_GATED, "it refuses access"),
    404: (ResultClass.NOT_AN_AGENT, "nothing is served here"),
    405: (_OK, "it accepts another method than GET"),
    406: (_OK, "it answers in another format than requested"),
    407: (_GATED, "a proxy asks for credentials"),
    410: (ResultClass.NOT_AN_AGENT, "it was removed for good"),
    411: (_OK, "it expects a message in the GET request"),
    415: (_OK, "it expects a message in JSON"),
    422: (_OK, "it expects a message in the GET request"),
    426: (_OK, "it speaks another protocol than plain HTTP/1.1"),
    428: (_OK, "it accepts requests only on a condition"),
    429: (ResultClass.RATE_LIMITED, "asked too often"),
    # Python's http.server answers so for every method that its handler lacks.
    501: (_OK, "it accepts another method than GET"),
})  # fmt: skip


def classify_interface(status: int) -> tuple[ResultClass, str]:
    """Return the result of an interface that answered a GET with this status, and the reason.

    Whatever it serves is an answer: many agents have a page for people at the same address. Most other 4xx
    concern the request, which was an ordinary one, and 5xx the server.
    """
    if found := ANSWERS.get(status):
        result, meaning = found
    elif 200 <= status < 400:
        return ResultClass.OK, ""
    else:
        result, meaning = ResultClass.HTTP_ERROR, "not an answer to a plain GET"
    return result, f"HTTP {status}: {meaning}"


def may_accept_post(status: int | None) -> bool:
    """Return whether OPTIONS is worth a try after this status of a GET: the path may accept only POST."""
    return status in {404, 410}


def allows_post(status: int | None, allow: str) -> bool:
    """Return whether an answer to OPTIONS lists POST in its `Allow` header (RFC 9110 10.2.1).

    CORS headers do not count: servers send them for every path.
    """
    methods = {method.strip().upper() for method in allow.split(",")}
    return status is not None and 200 <= status < 300 and "POST" in methods
