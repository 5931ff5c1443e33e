from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.support.databases import KINDS
from tests.support.registry_api import AGENTS
from tests.support.registry_machine import RegistryMachine, drive
from tests.support.task_api import REPORT, TASKS, Worker, create, steer, worker

from lifesign.domain.access.permissions import Role
from lifesign.domain.tasks.task_states import HELD, task_in

T = TypeVar("T")
NAMES = ("agent-1", "agent-2")
# Possible refusals of any write: each has its own test.
ANSWERS = {200, 201, 204, 402, 403, 404, 409, 410, 412, 422}
amounts = st.integers(0, 12)


class TasksMachine(RegistryMachine):
    """Two agents that work, a coordinator that decides, and time that passes."""

    def __init__(self) -> None:
        super().__init__()
        self.grants: list[tuple[Worker, dict[str, Any]]] = []
        self.ids: list[str] = []
        self.tokens: dict[str, int] = {}
        self.number = 0

    @initialize()
    def begin(self) -> None:
        self.workers = [self.run(worker(self.api, name)) for name in NAMES]
        self.create(20, 2)

    @rule(tokens=amounts, attempts=st.integers(1, 3))
    def create(self, tokens: int, attempts: int) -> None:
        made = self.run(create(self.api, budget={"tokens": tokens}, max_attempts=attempts, backoff_seconds=5))
        self.ids.append(made["task_id"])

    @rule(data=st.data(), ttl_s=st.sampled_from([10.0, 100.0]))
    def claim(self, data: st.DataObject, ttl_s: float) -> None:
        one = data.draw(st.sampled_from(self.workers))
        answer = self.run(one.claim(ttl_seconds=ttl_s))
        assert answer.status in {200, 204, 410}, answer.body
        if answer.status == 200:
            grant = answer.json()
            task_id, token = grant["task"]["task_id"], grant["lease"]["fencing_token"]
            assert token > self.tokens.get(task_id, 0)
            self.tokens[task_id] = token
            self.grants.append((one, grant))

    @precondition(lambda self: self.grants)
    @rule(
        data=st.data(),
        function=st.sampled_from(["progress", "complete", "help", "release", "delegate", "calls", "settle"]),
        tokens=amounts,
        is_repeat=st.booleans(),
    )
    def write(self, data: st.DataObject, function: str, tokens: int, *, is_repeat: bool) -> None:
        """Write in the name of a run, mostly of one that still lives."""
        one, grant = data.draw(st.sampled_from(self.grants[-2:] * 3 + self.grants))
        self.number += not is_repeat
        key = {"idempotency_key": f"{function}-{self.number}"}
        members: dict[str, dict[str, Any]] = {
            "progress": {"report": REPORT, **key},
            "complete": {"output": {}, **key},
            "help": {"reason": "?", **key},
            "release": {"exit_reason": "crash", **key},
            "delegate": {"task": {"title": "child", "budget": {"tokens": tokens}}, **key},
            "calls": {"call_id": f"c{self.number % 4}", "tool": "t", "most": {"tokens": tokens}},
            "settle": {"cost": {"tokens": tokens}},
        }
        path = f"calls/c{self.number % 4}/settle" if function == "settle" else function
        answer = self.run(one.write(grant, path, **members[function]))
        assert answer.status in ANSWERS, (function, answer.status, answer.body)
        if function == "delegate" and answer.status == 201 and answer.json()["child_id"] not in self.ids:
            self.ids.append(answer.json()["child_id"])

    @rule(
        data=st.data(), function=st.sampled_from(["cancel", "accept", "reject", "requeue", "done", "budget"])
    )
    def decide(self, data: st.DataObject, function: str) -> None:
        task_id = data.draw(st.sampled_from(self.ids))
        ways: dict[str, tuple[str, dict[str, Any]]] = {
            "cancel": ("cancel", {}),
            "accept": ("review", {"verdict": "accept"}),
            "reject": ("review", {"verdict": "reject"}),
            "requeue": ("resolve", {"resolution": "requeue"}),
            "done": ("resolve", {"resolution": "done"}),
            "budget": ("budget", {"add": {"tokens": 3}}),
        }
        path, members = ways[function]
        answer = self.run(steer(self.api, task_id, path, **members))
        assert answer.status in {200, 409}, answer.body
        fix = answer.json().get("fix")
        if fix is not None:
            self.ids.append(fix["task_id"])

    @rule(data=st.data(), function=st.sampled_from(["give_back", "restart"]))
    def lose(self, data: st.DataObject, function: str) -> None:
        """Give a lease back, or begin a new life."""
        one = data.draw(st.sampled_from(self.workers))
        if function == "restart":
            body = {"agent_id": one.agent_id, "supersede": True}
            assert self.run(self.api.ask("POST", AGENTS, body, key=one.key)).status in {200, 201}
            return
        mine = [grant for holder, grant in self.grants if holder is one]
        if mine:
            path = f"/api/v1/leases/{mine[-1]['lease']['lease_id']}"
            assert self.run(self.api.ask("DELETE", path, key=one.key)).status in {204, 410, 412}

    @rule(seconds=st.sampled_from([1.0, 5.0, 10.0, 100.0, 310.0]), beats=st.booleans())
    def live_on(self, seconds: float, *, beats: bool) -> None:
        """Let time pass; an agent without a heartbeat for long enough dies."""
        self.clock.advance(seconds)
        if beats:
            for one in self.workers:
                self.run(self.api.send_heartbeat(one.agent_id, one.key))
        self.run(self.api.sweep())

    @invariant()
    def task_has_a_holder_exactly_while_its_lease_runs(self) -> None:
        leases = self.run(self.api.ask("GET", "/api/v1/leases?limit=1000", key=Role.READER)).json()["leases"]
        held = {task_in(lease["resource"]): lease["holder"] for lease in leases}
        tasks = self.run(self.api.ask("GET", f"{TASKS}?limit=1000", key=Role.READER)).json()["tasks"]
        assert {task["task_id"]: task["holder"] for task in tasks if task["status"] in HELD} == held
        assert {task["task_id"] for task in tasks} == set(self.ids)

    @invariant()
    def nothing_is_promised_twice(self) -> None:
        for task_id in self.ids:
            shown = self.run(self.api.ask("GET", f"{TASKS}/{task_id}", key=Role.READER)).json()
            budget = shown["budget"]
            assert budget["available"]["tokens"] >= 0, shown
            assert shown["status"] in HELD or budget["reserved"]["tokens"] == 0, shown


@pytest.mark.hypothesis
@pytest.mark.parametrize(("kind", "runs"), [("sqlite", 3), ("postgresql", 1)])
def test_state_machine_of_tasks_stores_consistent_rows(kind: str, runs: int) -> None:
    drive(TasksMachine, kind, runs=runs, steps=30)


@pytest.mark.hypothesis
@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_long_state_machine_of_tasks_stores_consistent_rows(kind: str) -> None:
    drive(TasksMachine, kind, runs=10, steps=80)
