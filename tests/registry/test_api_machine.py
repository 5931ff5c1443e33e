from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.support.asgi_client import Answer
from tests.support.databases import KINDS
from tests.support.lifecycle_model import ALIVE, Agent, Lease, Model
from tests.support.registry_api import AGENTS
from tests.support.registry_machine import RegistryMachine, drive

from lifesign.domain.access.permissions import Role
from lifesign.domain.events.chain import agent_of
from lifesign.storage.events import event_log

NAMES = ("agent-1", "agent-2")
LEASES = "/api/v1/leases"
STATE = "/api/v1/intents/i1/state/notes"
RESOURCES = ("intent:i1/notes", "task:t1", "anything")

T = TypeVar("T")
resources = st.sampled_from(RESOURCES)
small_steps_s = st.sampled_from([0.5, 1.0, 10.0, 29.5, 30.0])
# Times around the limits: unhealthy at 90 s, dead at 300 s, drained at 120 s.
steps_s = small_steps_s | st.sampled_from([60.0, 89.5, 90.0, 90.5, 120.0, 209.5, 210.0, 300.0, 300.5, 400.0])
durations_s = st.sampled_from([1.0, 30.0, 100.0, 1000.0, 1000.0])
matches = st.sampled_from(["right", "right", "right", "right", "stale", "absent"])


class ApiMachine(RegistryMachine):
    """The registry beside the model; every rule asks both, every invariant compares them."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(self.clock.at_s)
        self.after = 0
        """Sequence of the last event that an invariant has read."""
        self.owned = 0
        """Sequence of the last event whose owner was checked."""
        self.last_states: dict[str, tuple[str, int, int]] = {}
        """State of each agent after the log's events: status, incarnation, version."""
        self.tokens: dict[str, int] = {}

    def ask(self, method: str, path: str, body: object = None, **options: Any) -> Answer:
        return self.run(self.api.ask(method, path, body, **options))

    def expect(self, status: int, method: str, path: str, body: object = None, **options: Any) -> Answer:
        answer = self.ask(method, path, body, **options)
        assert answer.status == status, (answer.status, answer.body, f"expected {status}")
        return answer

    def some_agent(self, data: st.DataObject) -> Agent:
        """Choose an agent, mostly one that is alive."""
        agents = list(self.model.agents.values())
        living = [agent for agent in agents if agent.status in ALIVE]
        return data.draw(st.sampled_from(living * 3 + agents))

    def if_match(self, agent: Agent, choice: str) -> tuple[str | None, dict[str, str]]:
        """Return a tag and the headers that carry it."""
        tag = {"right": agent.etag, "stale": '"99.99"', "absent": None}[choice]
        return tag, {} if tag is None else {"if-match": tag}

    # Agents

    @initialize()
    def begin(self) -> None:
        for name in NAMES:
            self.model.register(name, "", supersede=False)
            answer = self.expect(201, "POST", AGENTS, {"agent_id": name}, key=Role.ENROLL)
            self.model.agents[name].key = answer.json()["agent_key"]

    @rule(
        name=st.sampled_from(NAMES), supersede=st.sampled_from([False, False, True]), by_itself=st.booleans()
    )
    def register_again(self, name: str, *, supersede: bool, by_itself: bool) -> None:
        key = self.model.agents[name].key
        status = self.model.register(name, key, supersede=supersede)
        body = {"agent_id": name, "supersede": supersede}
        self.expect(status, "POST", AGENTS, body, key=key if by_itself else Role.COORDINATOR)

    @rule(
        data=st.data(),
        reported=st.sampled_from(["active", "active", "draining"]),
        life=st.sampled_from([None, 0, 0, -1]),
    )
    def send_heartbeat(self, data: st.DataObject, reported: str, life: int | None) -> None:
        agent = self.some_agent(data)
        incarnation = None if life is None else agent.incarnation + life
        headers = {} if incarnation is None else {"x-agent-incarnation": str(incarnation)}
        status = self.model.send_heartbeat(agent, reported, incarnation)
        body = {"status": reported, "client_timestamp": self.api.time_text()}
        path = f"{AGENTS}/{agent.agent_id}/heartbeat"
        answer = self.expect(status, "POST", path, body, key=agent.key, headers=headers)
        if status == 200:
            reply = answer.json()
            assert reply["agent_status"] == agent.status
            assert len(reply["pending_commands"]) == len(self.model.pending(agent))

    @rule(data=st.data(), choice=matches, timeout_s=st.sampled_from([None, 1.0, 30.0]))
    def drain(self, data: st.DataObject, choice: str, timeout_s: float | None) -> None:
        agent = self.some_agent(data)
        tag, headers = self.if_match(agent, choice)
        body = {"status": "draining", "drain_timeout_seconds": timeout_s}
        status = self.model.drain(agent, tag, timeout_s)
        self.expect(
            status, "PATCH", f"{AGENTS}/{agent.agent_id}/status", body, key=agent.key, headers=headers
        )

    @rule(data=st.data(), choice=matches)
    def deregister(self, data: st.DataObject, choice: str) -> None:
        agent = self.some_agent(data)
        tag, headers = self.if_match(agent, choice)
        status = self.model.deregister(agent, tag)
        self.expect(status, "DELETE", f"{AGENTS}/{agent.agent_id}", key=Role.COORDINATOR, headers=headers)

    @rule(data=st.data(), choice=matches, called=st.sampled_from([None, "Ann", "Bob"]))
    def rename(self, data: st.DataObject, choice: str, called: str | None) -> None:
        agent = self.some_agent(data)
        tag, headers = self.if_match(agent, choice)
        status = self.model.update(agent, tag, name=called)
        self.expect(
            status, "PATCH", f"{AGENTS}/{agent.agent_id}", {"name": called}, key=agent.key, headers=headers
        )

    @rule(data=st.data(), unhealthy_s=st.sampled_from([20.0, 90.0, 200.0]))
    def declare_other_thresholds(self, data: st.DataObject, unhealthy_s: float) -> None:
        agent = self.some_agent(data)
        config = {
            "interval_seconds": 10.0,
            "unhealthy_after_seconds": unhealthy_s,
            "dead_after_seconds": 3 * unhealthy_s,
        }
        tag, headers = self.if_match(agent, "right")
        changed = {"interval_s": 10.0, "unhealthy_after_s": unhealthy_s, "dead_after_s": 3 * unhealthy_s}
        status = self.model.update(agent, tag, **changed)
        self.expect(
            status,
            "PATCH",
            f"{AGENTS}/{agent.agent_id}",
            {"heartbeat_config": config},
            key=agent.key,
            headers=headers,
        )

    @rule(data=st.data(), timeout_s=st.sampled_from([None, 5.0]), expires_s=durations_s)
    def command(self, data: st.DataObject, timeout_s: float | None, expires_s: float) -> None:
        agent = self.some_agent(data)
        body = {"command": "drain", "drain_timeout_seconds": timeout_s, "expires_in_seconds": expires_s}
        status = self.model.command(agent, timeout_s, expires_s)
        self.expect(status, "POST", f"{AGENTS}/{agent.agent_id}/commands", body, key=Role.COORDINATOR)

    # Operators and probers

    @rule(data=st.data(), seconds=st.none() | durations_s)
    def maintain(self, data: st.DataObject, seconds: float | None) -> None:
        agent = self.some_agent(data)
        status = self.model.maintain(agent, seconds)
        path = f"{AGENTS}/{agent.agent_id}/maintenance"
        if seconds is None:
            self.expect(status, "DELETE", path, key=Role.COORDINATOR)
        else:
            self.expect(status, "PUT", path, {"seconds": seconds, "reason": "test"}, key=Role.COORDINATOR)

    @rule(data=st.data(), declared=st.sampled_from([None, "active", "unhealthy"]), seconds=durations_s)
    def override(self, data: st.DataObject, declared: str | None, seconds: float) -> None:
        agent = self.some_agent(data)
        path = f"{AGENTS}/{agent.agent_id}/override"
        if declared is None:
            self.expect(self.model.end_override(agent), "DELETE", path)
        else:
            status = self.model.override(agent, declared, seconds)
            self.expect(status, "PUT", path, {"status": declared, "seconds": seconds, "reason": "test"})

    # Leases

    @rule(data=st.data(), resource=resources, ttl_s=durations_s)
    def acquire(self, data: st.DataObject, resource: str, ttl_s: float) -> None:
        self.acquire_for(self.some_agent(data), resource, ttl_s)

    def acquire_for(self, agent: Agent, resource: str, ttl_s: float) -> None:
        status = self.model.acquire(agent, resource)
        body = {"resource": resource, "ttl_seconds": ttl_s}
        answer = self.expect(status, "POST", LEASES, body, key=agent.key)
        if status == 201:
            granted = answer.json()
            lease_id, token = granted["lease_id"], granted["fencing_token"]
            self.model.granted(Lease(resource, lease_id, agent.agent_id, token, self.clock.at_s + ttl_s))
        elif status == 409 and agent.status in {"active", "unhealthy"}:
            assert answer.json()["existing_lease"]["holder"] == self.model.leases[resource].holder

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), added=st.sampled_from([0, 0, 0, 1, -1]), ttl_s=durations_s)
    def renew(self, data: st.DataObject, added: int, ttl_s: float) -> None:
        agent, lease = self.some_agent(data), self.some_lease(data)
        if lease.token + added < 1:
            return
        status = self.model.renew(agent, lease, lease.token + added, ttl_s)
        body = {"fencing_token": lease.token + added, "ttl_seconds": ttl_s}
        self.expect(status, "POST", f"{LEASES}/{lease.lease_id}/renew", body, key=agent.key)

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), by_operator=st.sampled_from([False, False, True]))
    def release(self, data: st.DataObject, *, by_operator: bool) -> None:
        agent = None if by_operator else self.some_agent(data)
        lease = self.some_lease(data)
        key = Role.COORDINATOR if agent is None else agent.key
        self.expect(self.model.release(agent, lease), "DELETE", f"{LEASES}/{lease.lease_id}", key=key)

    @rule(data=st.data(), added=st.sampled_from([0, 0, 0, 1, -1]))
    def write(self, data: st.DataObject, added: int) -> None:
        agent = self.some_agent(data)
        lease = self.model.leases.get(RESOURCES[0])
        token = max(0, added + (1 if lease is None else lease.token))
        status = self.model.write(agent, RESOURCES[0], token)
        headers = {"x-fencing-token": str(token)}
        answer = self.expect(status, "PUT", STATE, {"by": agent.agent_id}, key=agent.key, headers=headers)
        if status == 200:
            assert answer.json()["version"] == self.model.versions[RESOURCES[0]]

    def some_lease(self, data: st.DataObject) -> Lease:
        """Choose a lease, mostly a current one."""
        current = list(self.model.leases.values())
        return data.draw(st.sampled_from(current * 2 + self.model.old_leases))

    # Time

    @rule(seconds=small_steps_s)
    def let_time_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.advance(seconds)

    @rule(seconds=steps_s)
    def live_on(self, seconds: float) -> None:
        """Let time pass with sweeps running; at its end they have seen what there is to see."""
        self.let_time_pass(seconds)
        self.model.sweep(others_swept=True)
        self.run(self.api.sweep())
        # An agent whose lease expired is handled by the next sweep.
        self.run(self.api.sweep())

    @precondition(lambda self: self.model.deadlines_s())
    @rule(data=st.data(), beyond_s=st.sampled_from([0.0, 0.5]))
    def live_to_a_deadline(self, data: st.DataObject, beyond_s: float) -> None:
        """Let just so much time pass that something is due, or is due after the next moment only."""
        deadline_s = data.draw(st.sampled_from(self.model.deadlines_s()))
        self.live_on(deadline_s - self.clock.at_s + beyond_s)

    @rule(data=st.data(), resource=resources)
    def drain_while_holding(self, data: st.DataObject, resource: str) -> None:
        """Begin a drain that only its timeout, or the end of the lease, will end."""
        agent = self.some_agent(data)
        self.acquire_for(agent, resource, 1000.0)
        headers = {"if-match": agent.etag}
        status = self.model.drain(agent, agent.etag, None)
        path = f"{AGENTS}/{agent.agent_id}/status"
        self.expect(status, "PATCH", path, {"status": "draining"}, key=agent.key, headers=headers)

    @rule(seconds=steps_s)
    def be_down(self, seconds: float) -> None:
        """Let time pass without sweeps."""
        self.let_time_pass(seconds)
        self.model.sweep(others_swept=False)
        self.run(self.api.registry.sweeper.sweep_once())
        self.run(self.api.registry.sweeper.sweep_once())

    # Invariants after every step

    @invariant()
    def shows_what_the_model_says(self) -> None:
        for name, agent in self.model.agents.items():
            shown = self.expect(200, "GET", f"{AGENTS}/{agent.agent_id}", key=Role.READER).json()
            found = tuple(shown[key] for key in ("status", "reason", "incarnation", "version", "etag"))
            expected = (agent.status, agent.reason, agent.incarnation, agent.version, agent.etag)
            assert found == expected, f"{name}: {found}, expected {expected}"
            assert shown["health"] == "unknown"

    @invariant()
    def leases_are_those_of_the_model(self) -> None:
        listed = self.expect(200, "GET", LEASES, key=Role.READER).json()["leases"]
        found = {lease["resource"]: (lease["holder"], lease["fencing_token"]) for lease in listed}
        held = self.model.held()
        assert found == {name: (lease.holder, lease.token) for name, lease in held.items()}
        for lease in listed:
            assert self.model.agents[lease["holder"]].status in ALIVE
            assert lease["fencing_token"] >= self.tokens.get(lease["resource"], 0)
            self.tokens[lease["resource"]] = lease["fencing_token"]

    @invariant()
    def lifecycle_events_are_contiguous(self) -> None:
        query = f"after={self.after}&limit=1000&type=agent.lifecycle,agent.updated"
        page = self.expect(200, "GET", f"/api/v1/events?{query}", key=Role.READER).json()
        for event in page["events"]:
            result = event["payload"]
            before, *_ = self.last_states.get(result["agent_id"], ("registering", 0, 0))
            assert result.get("previous_status", before) == before, event
            after = (result.get("new_status", before), result["incarnation"], result["version"])
            self.last_states[result["agent_id"]] = after
        self.after = page["next_after"]
        expected = {
            name: (agent.status, agent.incarnation, agent.version)
            for name, agent in self.model.agents.items()
        }
        assert self.last_states == expected

    @invariant()
    def stored_agent_of_an_event_matches_its_payload(self) -> None:
        new = partial(event_log.with_agents, sequence=self.owned, limit=1_000)
        for event, agent_id in self.run(self.api.database.read(new)):
            assert agent_of(event) == agent_id, event
            self.owned = event.sequence


@pytest.mark.hypothesis
@pytest.mark.parametrize(("kind", "runs"), [("sqlite", 3), ("postgresql", 1)])
def test_state_machine_of_the_api_agrees_with_the_rules(kind: str, runs: int) -> None:
    drive(ApiMachine, kind, runs=runs, steps=50)


@pytest.mark.hypothesis
@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_long_state_machine_agrees_with_the_rules(kind: str) -> None:
    drive(ApiMachine, kind, runs=15, steps=120)
