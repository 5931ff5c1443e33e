from types import SimpleNamespace
from typing import Any

import pytest

from lifesign.client.registry_errors import (
    Gone,
    InvalidAnswer,
    NotPermitted,
    RateLimited,
    RegistryError,
    RegistryRefusal,
    Stale,
    Unavailable,
    Unprocessable,
    Unreachable,
)
from lifesign.client.registry_tasks import HeldRun
from lifesign.errors import InvalidValue
from lifesign.mcp.delegate_subtask import Subtask
from lifesign.mcp.run_binding import key_of, refusal, run_in, run_of
from lifesign.mcp.tool_definition import ToolFailed

RUN = HeldRun(task_id="task_1", run_id="run_1", fencing_token=7)
ENVIRONMENT = {
    "LIFESIGN_TASK_ID": "task_1",
    "LIFESIGN_RUN_ID": "run_1",
    "LIFESIGN_FENCING_TOKEN": "7",
}


def test_process_under_a_lease_gets_its_run_from_the_environment() -> None:
    assert run_in(ENVIRONMENT) == RUN
    assert run_in({"PATH": "/bin", "LIFESIGN_RUN_ID": ""}) is None


def test_server_without_a_run_writes_for_none() -> None:
    reach: Any = SimpleNamespace(run=None)
    with pytest.raises(ToolFailed) as refused:
        run_of(Subtask.model_construct(), reach)
    assert refused.value.code == "not_allowed"
    reach.run = RUN
    assert run_of(Subtask.model_construct(), reach) is RUN


@pytest.mark.parametrize("name", list(ENVIRONMENT))
def test_run_variables_are_complete_or_absent(name: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        run_in({**ENVIRONMENT, name: ""})
    assert (refused.value.name, refused.value.given) == (name, None)
    assert all(other in refused.value.expected for other in ENVIRONMENT if other != name)


@pytest.mark.parametrize("token", ["seven", "-1", "7.0", "\u0667", "9" * 20])
def test_a_token_is_a_whole_number(token: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        run_in({**ENVIRONMENT, "LIFESIGN_FENCING_TOKEN": token})
    assert refused.value.name == "LIFESIGN_FENCING_TOKEN"


def test_member_order_does_not_change_the_derived_idempotency_key() -> None:
    first = Subtask(title="part", input={"a": 1, "b": {"c": 2, "d": 3}})
    again = Subtask(title="part", input={"b": {"d": 3, "c": 2}, "a": 1})
    assert key_of("delegate_subtask", first, RUN) == key_of("delegate_subtask", again, RUN)


@pytest.mark.parametrize(
    "other",
    [
        key_of("delegate_subtask", Subtask(title="other"), RUN),
        key_of("report_progress", Subtask(title="part"), RUN),
        key_of("delegate_subtask", Subtask(title="part"), HeldRun(task_id="t", run_id="r", fencing_token=7)),
        key_of("delegate_subtask", Subtask(title="part", idempotency_key="mine"), RUN),
    ],
)
def test_any_changed_argument_changes_the_derived_idempotency_key(other: str) -> None:
    assert key_of("delegate_subtask", Subtask(title="part"), RUN) != other


def test_given_idempotency_key_is_used_unchanged() -> None:
    assert key_of("any", Subtask(title="part", idempotency_key="mine"), RUN) == "mine"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RegistryRefusal("HTTP 402: no", code="budget_exceeded"), "budget_exceeded"),
        (Stale("HTTP 412: no", code="lease_ended"), "stale_token"),
        (Gone("HTTP 410: no", code="agent_gone"), "stale_token"),
        (NotPermitted("HTTP 403: no", code="not_holder"), "stale_token"),
        (NotPermitted("HTTP 403: no", code="not_allowed"), "not_allowed"),
        (Unreachable("no connection", was_sent=False), "orchestrator_unavailable"),
        (Unavailable("HTTP 503: no"), "orchestrator_unavailable"),
        (InvalidAnswer("HTTP 500"), "orchestrator_unavailable"),
        (RateLimited("HTTP 429: no"), "orchestrator_unavailable"),
        (Unprocessable("HTTP 422: no", code="idempotency_key_reused"), "idempotency_key_reused"),
    ],
    ids=str,
)
def test_refusal_has_the_protocol_code_and_the_registry_code(error: RegistryError, code: str) -> None:
    failed = refusal(error)
    assert failed.code == code
    assert str(failed).startswith(f"{code}: ")
    assert str(error) in str(failed)
