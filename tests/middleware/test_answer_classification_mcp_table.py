"""The table of outcomes in section 2.1 of the protocol page, row by row, against the middleware."""

import re
from collections.abc import Iterator
from typing import Final

import pytest
from tests.middleware.test_answer_classification_mcp import (
    FAILED_TOOL,
    INTERACTIONS,
    RESULTS,
    error,
    message,
    outcome_of_call,
)
from tests.support.scripted import JSON, PLAIN, Server, Step, final, request, start
from tests.support.servers import REPOSITORY

from lifesign.domain.mcp import answer_outcome

PAGE = (REPOSITORY / "docs" / "protocol.md").read_text()
SECTION = PAGE.partition("\n### 2.1 MCP\n")[2].partition("\n## ")[0]
ROWS = [(cell, outcome) for cell, outcome in re.findall(r"^\| (.+) \| `(\w+)` \|$", SECTION, re.MULTILINE)]
OTHER_CODES: Final = (-32000, -32001, -32099, -1, 0, 7)
SERVER_ERRORS: Final = (500, 501, 502, 503, 504, 599)
FAILURES: Final = (True, "true", "", 0, None)
LISTS: Final = [name for name in RESULTS if name.endswith("/list")]
NOTIFICATION = request(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')

Case = tuple[str, str, list[Step], Server | None]
"""Method of MCP, method of HTTP, answer, and the request if it is another one."""


def codes_in(cell: str) -> list[int]:
    return [int(code) for code in re.findall(r"-\d{5}", cell)]


def statuses_in(cell: str) -> list[int]:
    return [int(status) for status in re.findall(r"(?<![-\d])[1-5]\d\d(?!\d)", cell)]


def methods_in(cell: str) -> list[str]:
    return [name for name in re.findall(r"`([\w/]+)`", cell) if name in RESULTS]


def answer(body: bytes, status: int = 200) -> list[Step]:
    return [start(status, JSON if body else PLAIN), final(body)]


def called(
    *steps: Step, method: str = "tools/call", http: str = "POST", server: Server | None = None
) -> Case:
    return method, http, list(steps), server


OF_WORD: Final[dict[str, list[Case]]] = {
    "5xx": [called(*answer(b"no", status)) for status in SERVER_ERRORS],
    "code": [called(*answer(error(code))) for code in OTHER_CODES],
    "lists": [called(*answer(message(result=RESULTS[name])), method=name) for name in LISTS],
    "isError": [called(*answer(message(result=FAILED_TOOL | {"isError": value}))) for value in FAILURES],
    "input_required": [called(*answer(message(result={"resultType": "input_required"})))],
    "object": [called(*answer(message(result=None)), method=name) for name in INTERACTIONS],
    "GET": [called(*answer(b"", 405), http="GET")],
    "DELETE": [called(*answer(b"", 405), http="DELETE")],
    "notifications": [called(*answer(b"", 202), server=Server(NOTIFICATION))],
}


def cases_of(cell: str) -> Iterator[Case]:
    """Yield a request and an answer for each fact that the first cell of a row names."""
    for code in codes_in(cell):
        yield called(*answer(error(code)))
    for status in statuses_in(cell):
        yield called(*answer(b"", status))
    for method in methods_in(cell):
        yield called(*answer(message(result=RESULTS[method])), method=method)
    for word in re.findall(r"\w+", cell):
        yield from OF_WORD.get(word, ())


@pytest.mark.parametrize(("cell", "outcome"), ROWS)
async def test_row_of_the_table_is_what_the_middleware_counts(cell: str, outcome: str) -> None:
    cases = list(cases_of(cell))
    assert cases
    for method, http, steps, server in cases:
        assert await outcome_of_call(*steps, method=method, http=http, server=server) == outcome, (
            method,
            http,
            steps,
        )


def test_table_names_every_rule_of_the_code() -> None:
    cells = "\n".join(cell for cell, _ in ROWS)
    assert set(codes_in(cells)) == {*answer_outcome._OUTCOME_OF_CODE, -32603}
    refused = {status for cell, _ in ROWS for status in statuses_in(cell) if status >= 400}
    assert refused == answer_outcome._REFUSED_BY_TRANSPORT
    (answered,) = [cell for cell, _ in ROWS if "tools/call" in cell]
    assert set(methods_in(answered)) == answer_outcome._INTERACTIONS == INTERACTIONS
    excluded = {method for cell, outcome in ROWS if outcome == "excluded" for method in methods_in(cell)}
    assert excluded <= answer_outcome._NO_INTERACTIONS
    assert {outcome for _, outcome in ROWS} == {
        "answered", "tool_error", "no_operation", "caller_fault", "abandoned", "server_fault", "malformed",
        "excluded",
    }  # fmt: skip
