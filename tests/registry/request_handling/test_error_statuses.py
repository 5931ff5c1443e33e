import json
import re
from typing import Any

import pytest
from tests.support.registry_api import AGENTS, RegistryApi

from lifesign.domain.access.permissions import Permission, Role
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest, NotAllowed
from lifesign.errors import LifesignError
from lifesign.registry.errors import UnknownKey
from lifesign.registry.request_handling.error_statuses import error_response
from lifesign.serving.error_body import RETRY_SECONDS
from lifesign.storage.errors import StoreUnavailable


def body_of(error: LifesignError) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(bytes(error_response(error).body))
    return body


@pytest.mark.parametrize("action", Permission)
def test_refused_key_reads_which_roles_may(action: Permission) -> None:
    error = body_of(NotAllowed("enroll", action, None))["error"]
    assert error["hint"].startswith("use ")
    named = set(re.findall(r"\b(?:enroll|reader|prober|coordinator|admin)\b", error["hint"]))
    assert named or "own key" in error["hint"]
    assert "hint" not in error["details"]


def test_missing_key_reads_how_to_get_one() -> None:
    assert "lifesign keys create" in body_of(UnknownKey())["error"]["hint"]


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (Finding("float_parsing", "/ttl_seconds", "expected a number"), "ttl_seconds"),
        (Finding("missing", "/ttl_seconds", "expected a value"), None),
        (Finding("extra_forbidden", "/ttl_ms", "unknown"), None),
        (Finding("string_type", "/name", "expected a text"), None),
    ],
)
def test_wrong_unit_reads_the_unit(fault: Finding, named: str | None) -> None:
    error = body_of(InvalidRequest([fault]))["error"]
    assert error.get("hint", "").split(" ")[0] == (named or "")
    assert ("hint" in error) == (named is not None)


def test_hint_for_the_operator_is_not_sent_to_callers() -> None:
    error = StoreUnavailable("unreachable")
    error.hint = "check that PostgreSQL runs"
    body = body_of(error)
    assert "hint" not in body["error"]
    assert body["error"]["details"] == {}


def test_answer_without_a_database_closes_the_connection() -> None:
    headers = error_response(StoreUnavailable("unreachable")).headers
    assert (headers["connection"], int(headers["retry-after"])) == ("close", RETRY_SECONDS)


async def test_api_answers_with_hints(api: RegistryApi) -> None:
    wrong = await api.ask("POST", "/api/v1/leases", {"resource": "agent:a", "ttl_seconds": "5m"})
    assert (wrong.status, wrong.json()["error"]["hint"].split()[0]) == (422, "ttl_seconds")
    assert (await api.ask("GET", AGENTS, key=None)).json()["error"]["hint"]
    assert "admin" in (await api.ask("GET", AGENTS, key=Role.ENROLL)).json()["error"]["hint"]
    assert AGENTS in (await api.ask("GET", f"{AGENTS}/absent")).json()["error"]["hint"]
    assert "hint" not in (await api.ask("GET", "/api/v1/leases/lse_x/absent")).json()["error"]
    king = await api.ask("POST", "/api/v1/keys", {"role": "king", "name": "x"}, key=Role.ADMIN)
    assert set(Role) <= set(king.json()["error"]["hint"].split())
