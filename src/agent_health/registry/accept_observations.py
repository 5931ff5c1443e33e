"""What follows from what probers have seen? (protocol 3, 4, 8)

One batch is one shard's results: all of it counts, or none if the shard was leased to somebody else since.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from agent_health.access import Action
from agent_health.agent_record import Body, Registration
from agent_health.errors import AgentHealthError
from agent_health.lease import judge_write
from agent_health.lifecycle import Status
from agent_health.observation import Observation
from agent_health.observed import Observed, fold
from agent_health.registry import lease_events
from agent_health.registry.call import checked
from agent_health.registry.change_status import MONITOR, change_status
from agent_health.registry.hold_lease import holder_of
from agent_health.registry.judge_agents import judge_agents
from agent_health.registry.lease_records import Token, refused
from agent_health.registry.monitor_row import circumstances
from agent_health.registry.operations import Call, Operation, Reply
from agent_health.registry.register_agent import add_agent
from agent_health.storage import agents, event_log, leases
from agent_health.storage.agents import StoredAgent
from agent_health.storage.database import Transaction
from agent_health.target import target_id
from agent_health.verdict import Monitoring

MAX_OBSERVATIONS = 1_000
"""In one batch."""
MAX_BODY_BYTES = 8_388_608
"""A thousand observations, each with reasons in words."""
MAX_SHARD = 999_999_999


class ObservationBatch(Body):
    """The body of `POST /api/v1/observations`."""

    observations: Annotated[list[Observation], Field(min_length=1, max_length=MAX_OBSERVATIONS)]
    """In the order in which they were made."""
    shard: Annotated[int, Field(ge=0, le=MAX_SHARD, strict=True)] | None = None
    """The shard that they are the results of, with the token of the prober's lease on it."""
    fencing_token: Token | None = None

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if (self.shard is None) != (self.fencing_token is None):
            raise PydanticCustomError("shard_and_token", "shard and fencing_token go together")
        return self


class Outcome(StrEnum):
    """What became of one observation."""

    ACCEPTED = "accepted"
    UNKNOWN = "unknown"
    """No agent has this id."""
    IGNORED = "ignored"
    """It was late, doubled or misdated, or the agent is off the list."""
    NO_SIGN_OF_LIFE_YET = "no_sign_of_life_yet"
    """The target gets a record at its first one."""


class ObservationResult(BaseModel):
    """What became of one observation, and whose it is."""

    agent_id: str
    """Of a target too that has no record yet."""
    outcome: Outcome


class ObservationAnswer(BaseModel):
    """The answer to a batch."""

    results: list[ObservationResult]
    """One for each observation, in their order."""
    counts: dict[Outcome, int]


def accept_observations(transaction: Transaction, call: Call) -> Reply | AgentHealthError:
    """Fold observations into what is known of their agents, and carry out what follows.

    The refusal of a stale token is returned, not raised: its event has to be committed.
    """
    batch = call.body_as(ObservationBatch)
    subjects = [_agent_id(observation) for observation in batch.observations]
    found = {
        agent.agent_id: agent
        for agent in agents.find_named(transaction, sorted(set(subjects)), to_change=True)
    }
    refusal = _refusal(transaction, call, batch)
    if refusal is not None:
        return refusal
    # The locks may have been waited for.
    transaction = transaction.after_waiting()
    _add_found_targets(transaction, batch.observations, found)
    seen = {
        agent_id: Observed() if agent.observed is None else Observed.from_json(agent.observed)
        for agent_id, agent in found.items()
    }
    results: list[ObservationResult] = []
    touched: dict[str, Observed] = {}
    for agent_id, observation in zip(subjects, batch.observations, strict=True):
        outcome = _outcome(observation, found.get(agent_id))
        if outcome is Outcome.ACCEPTED:
            after = fold(seen[agent_id], observation, transaction.now_s)
            if after is seen[agent_id]:
                outcome = Outcome.IGNORED
            else:
                seen[agent_id] = touched[agent_id] = after
        results.append(ObservationResult(agent_id=agent_id, outcome=outcome))
    _follow_up(transaction, [found[agent_id] for agent_id in touched], touched)
    counts = Counter(result.outcome for result in results)
    return Reply(content=ObservationAnswer(results=results, counts=dict(counts)))


def _agent_id(observation: Observation) -> str:
    if observation.agent_id is not None:
        return observation.agent_id
    return target_id(observation.target_url or "")


def _refusal(transaction: Transaction, call: Call, batch: ObservationBatch) -> AgentHealthError | None:
    """Return why the batch of a shard is refused, None if its lease is the caller's."""
    if batch.shard is None or batch.fencing_token is None:
        return None
    resource, token, holder = f"shard:{batch.shard}", batch.fencing_token, holder_of(call.caller)
    claim = leases.find(transaction, resource, to_change=True)
    if claim is not None and claim.lease_id is None:
        claim = None
    now_s = transaction.after_waiting().now_s
    refusal = judge_write(claim, holder, token, now_s)
    if refusal is None:
        return None
    event = lease_events.write_rejected(
        refusal, resource, writer=holder, token=token, agent_id=call.caller.agent_id
    )
    event_log.append(transaction, [event])
    return refused(refusal, resource, now_s=now_s, token=token)


def _add_found_targets(
    transaction: Transaction, observations: Iterable[Observation], found: dict[str, StoredAgent]
) -> None:
    """Give each target a record that shows its first sign of life."""
    for observation in observations:
        url = observation.target_url
        if url is None or not observation.is_sign_of_life or target_id(url) in found:
            continue
        agent_id = target_id(url)
        asked = {"agent_id": agent_id, "card_url": url, "monitoring": Monitoring.PROBE}
        body = checked(Registration, asked)
        assert isinstance(body, Registration)  # noqa: S101 - it is what was asked for
        found[agent_id] = add_agent(transaction, agent_id, body, MONITOR, "its first sign of life")


def _outcome(observation: Observation, agent: StoredAgent | None) -> Outcome:
    if agent is None:
        return Outcome.UNKNOWN if observation.target_url is None else Outcome.NO_SIGN_OF_LIFE_YET
    return Outcome.IGNORED if agent.status == Status.DEREGISTERED else Outcome.ACCEPTED


def _follow_up(transaction: Transaction, touched: Sequence[StoredAgent], seen: dict[str, Observed]) -> None:
    """Store what is known now, and carry out what follows from it."""
    facts = {agent.id: seen[agent.agent_id].to_json() for agent in touched}
    agents.set_observed(transaction, facts)
    known = [replace(agent, observed=facts[agent.id]) for agent in touched]
    changes = judge_agents(transaction, known, circumstances(transaction))
    agents.set_judge_at(
        transaction, {change.agent.id: change.judge_at_s for change in changes if not change.is_visible}
    )
    change_status(transaction, [change for change in changes if change.is_visible], MONITOR)


OPERATIONS = (
    Operation(
        method="POST",
        path="/api/v1/observations",
        summary="Report what a prober has seen, as one batch",
        action=Action.REPORT_OBSERVATIONS,
        deed=accept_observations,
        body=ObservationBatch,
        answer=ObservationAnswer,
        errors=(404, 412),
        max_body_bytes=MAX_BODY_BYTES,
    ),
)
