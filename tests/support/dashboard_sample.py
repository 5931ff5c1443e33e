"""The registry that the pages of the dashboard show in tests, and in the picture in README.

One of every kind, created by the API itself with a clock set by hand: everything shown has happened.
"""

import math
import time
from pathlib import Path
from typing import Any

from tests.support.databases import WoundClock
from tests.support.directory_api import put
from tests.support.registry_api import AGENTS, RegistryApi
from tests.support.task_api import REPORT, create, steer, worker

from lifesign.domain.access.permissions import Role, key_of
from lifesign.domain.lifecycle.agent_history import (
    HALF_HOURS_PER_DAY,
    HistorySlot,
    KeptHistory,
    Measure,
    Spread,
    added,
    half_hour_of,
)
from lifesign.domain.models.base import moment
from lifesign.storage.agents import agent_rows, histories
from lifesign.storage.engine import schema_version
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.targets import census_counts

HOSTILE = '<script>alert(1)</script> "><img src=x onerror=alert(2)> \u202etxt'
"""Text that no page may treat as markup."""
LONGEST_ID = "x" * 128
LINES = "Translated the handbook:\r\n- 12 pages\n- no pictures \x1b[2J"
CARD = "https://agents.example.com/{}/.well-known/agent-card.json"
STAFF_CARD = "https://staff.example.org/{}/card.json"
TEAMS = ("research", "support", "billing")
SPAN_SECONDS = 5_400.0
PATIENT = {"interval_seconds": 30, "unhealthy_after_seconds": 14_400, "dead_after_seconds": 28_800}
"""Intervals of heartbeat agents: the server is read for as long as the tests take."""
WATCHED = tuple(
    agent_id
    for number, agent_id in enumerate([f"{team}-{number}" for team in TEAMS for number in range(1, 9)])
    if number % 8 != 5
)
"""An agent with heartbeats and probes."""
SILENT: dict[str, dict[str, int]] = {
    "billing-7": {},
    "support-3": {**PATIENT, "unhealthy_after_seconds": 90},
}
"""A dead agent, and one that stays unhealthy."""
PATIENTLY_PROBED = ("forgotten", "flaky")
"""Active probed agents: the first one has no prober any more, and the second one failed twice."""
KEYS = {role: key_of(bytes([number]) * 32) for number, role in enumerate(Role)}
"""One for each role; an agent's own are others."""


async def fill(directory: Path, name: str = "registry.db") -> dict[str, str]:
    """Write a registry's database; return what tests ask for by name, among them ids of tasks."""
    clock = WoundClock(time.time() - SPAN_SECONDS)
    database = open_database(f"sqlite:///{directory}/{name}", clock=clock.now_s)
    await database.write(schema_version.set_up_or_check)
    api = RegistryApi(database, clock)
    await api.add_keys()
    try:
        await _probed(api, clock)
        await _people(api, clock)
        named = await _tasks(api, clock)
        await _listed(api, clock)
        await _let_time_pass(api, clock)
    finally:
        await database.close()
    return named


async def _people(api: RegistryApi, clock: WoundClock) -> None:
    """Register agents that send heartbeats."""
    for number in range(24):
        team = TEAMS[number % len(TEAMS)]
        agent_id = f"{team}-{number // 3 + 1}"
        await api.register(
            agent_id,
            name=f"{team.capitalize()} agent {number // 3 + 1}",
            role_id=team,
            capabilities=[team, "any"],
            capacity={"max_concurrent_tasks": 4, "current_load": number % 5},
            endpoint=f"https://agents.example.com/{team}-{number // 3 + 1}",
            metadata={"owner": f"team-{team}"},
            heartbeat_config=SILENT.get(agent_id, PATIENT),
            **(
                {"monitoring": "both", "card_url": STAFF_CARD.format(agent_id)} if agent_id in WATCHED else {}
            ),
        )
        clock.advance(7)
    await api.register(
        "hostile",
        name='<b>Bold</b> & "quoted" \u202etxt',
        metadata={"note": HOSTILE, "public_status": True},
        heartbeat_config=PATIENT,
    )
    await api.register("librarian", name="Librarian")
    await api.register(LONGEST_ID, name="Retired agent", metadata={"public_status": True})
    await api.ask("DELETE", f"{AGENTS}/{LONGEST_ID}")


async def _probed(api: RegistryApi, clock: WoundClock) -> None:
    """Register agents that are probed, and let a prober look at them for an hour."""
    for name in ("translator", "summariser", "planner", "paywalled", *PATIENTLY_PROBED):
        await api.register(
            name,
            name=f"{name.capitalize()} (probed)",
            monitoring="probe",
            card_url=CARD.format(name),
            capabilities=[name],
            metadata={"public_status": name in {"translator", *PATIENTLY_PROBED}},
            heartbeat_config=PATIENT
            if name in PATIENTLY_PROBED
            else {"interval_seconds": 120, "unhealthy_after_seconds": 600, "dead_after_seconds": 7200},
        )
    await _remember(api, clock, "translator")
    await report(api, clock, _look(clock, "forgotten", 0), interval_s=60)
    await report(api, clock, _look(clock, "flaky", 0))
    for minute in range(0, 60, 3):
        clock.advance(180)
        await report(api, clock, *(_look(clock, name, minute) for name in ("translator", "summariser")))
        await report(api, clock, _look(clock, "planner", minute), _gated(clock))
        await api.sweep()


def month_behind(now_s: float, *, has_gaps: bool = True) -> KeptHistory:
    """Make a month of numbers; with gaps it was down for a while, and at times not probed."""
    running = half_hour_of(now_s)
    history = KeptHistory()
    for number in range(running - 30 * HALF_HOURS_PER_DAY, running):
        ago = running - number
        if has_gaps and (16 <= ago < 20 or 200 <= ago < 330 or ago >= 29 * HALF_HOURS_PER_DAY):
            continue
        if has_gaps and (30 <= ago < 34 or ago in {700, 701}):
            history = added(history, HistorySlot(number, failed=6))
            continue
        swing = math.sin(number * math.tau / HALF_HOURS_PER_DAY)
        errors = 0.004 + 0.003 * swing + (0.06 if ago in {29, 35, 36} else 0.0)
        numbers = {
            Measure.ANSWER_MS: (180.0, 260.0 + 80 * swing, 420.0 + 200 * swing),
            Measure.RESPONSE_RATIO: (1 - errors * 1.5, 1 - errors, 1 - errors / 2),
            Measure.ERROR_RATIO: (errors / 2, errors, errors * 1.5),
            Measure.LATENCY_P50_MS: (300.0, 340.0 + 60 * swing, 410.0 + 60 * swing),
            Measure.LATENCY_P99_MS: (1_500.0 + 300 * swing, 1_900.0 + 600 * swing, 2_600.0 + 900 * swing),
        }
        spreads = {measure: Spread(*values) for measure, values in numbers.items()}
        history = added(history, HistorySlot(number, alive=6, failed=int(ago in {29, 35}), spreads=spreads))
    return history


async def _remember(api: RegistryApi, clock: WoundClock, agent_id: str) -> None:
    """Have a month behind an agent."""

    def function(transaction: Transaction) -> None:
        agent = agent_rows.find(transaction, agent_id)
        assert agent is not None
        histories.store(transaction, {agent.id: month_behind(clock.at_s)})

    await api.database.write(function)


ASSERTION = {
    "of": "/status", "check": "equals", "pointer": "/queue/depth", "result": "ok",
    "expected": "17", "actual": "17",
}  # fmt: skip


def _look(clock: WoundClock, name: str, minute: int) -> dict[str, Any]:
    is_down = name in {"planner", "flaky"} and minute >= 36
    status = "degraded" if name == "summariser" and minute >= 30 else "healthy"
    answer = {"result": "ok", "status_code": 200, "latency_ms": 84.0 + minute % 17 * 6}
    failed = {"result": "timeout", "reason": "no answer within 10 s"}
    seen: dict[str, Any] = {"agent_id": name, "observed_at": moment(clock.at_s).isoformat()}
    if is_down:
        return seen | {"discovery": failed, "transport": failed}
    return seen | {
        "discovery": answer,
        "transport": answer | {"latency_ms": 240.0 + minute % 13 * 21},
        "readiness": answer | {"latency_ms": 31.5},
        **({"assertions": [ASSERTION]} if name == "summariser" else {}),
        "document": {
            "status": status,
            "timestamp": moment(clock.at_s).isoformat(),
            "max_age_s": 60,
            "response_ratio": 0.87 if status == "degraded" else 0.993,
            "sample_count": 412,
            "error_ratio": 0.13 if status == "degraded" else 0.007,
            "latency_p50_ms": 330.0 + minute % 11 * 9,
            "latency_p99_ms": 1_840.0,
        },
    }


def _gated(clock: WoundClock) -> dict[str, Any]:
    gate = {"result": "gated", "status_code": 402, "reason": "402 Payment Required", "latency_ms": 120.0}
    return {
        "agent_id": "paywalled",
        "observed_at": moment(clock.at_s).isoformat(),
        "discovery": {"result": "ok", "status_code": 200, "latency_ms": 95.0},
        "transport": gate,
        "login": {"schemes": ["bearer"], "card_schemes": ["oauth2"]},
    }


async def report(
    api: RegistryApi, clock: WoundClock, *observations: dict[str, Any], interval_s: float = 7_200
) -> None:
    """Send the report of a prober with its interval: the results count for three intervals."""
    memories: list[dict[str, Any]] = [{} for _ in observations]
    answer = await api.report(*observations, memories=memories, interval_s=interval_s)
    assert answer.status == 200, answer.body
    clock.advance(1)


async def _end_run(api: RegistryApi, run_id: str) -> None:
    """End a pass, though one target was not probed in it."""

    def end(transaction: Transaction) -> None:
        run = census_counts.find_run(transaction, run_id)
        assert run is not None
        counts = census_counts.results_since(transaction, run.began_at_s)
        census_counts.end_run(transaction, run_id, counts)

    await api.database.write(end)


async def _listed(api: RegistryApi, clock: WoundClock) -> None:
    """Have a directory list targets, and end one pass over them."""
    urls = [f"https://{name}.example.net/" for name in ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")]
    await put(api, "sample-directory", "first", urls)
    run = {"name": "census"}
    await api.ask("PUT", "/api/v1/census/runs/first", run, key=Role.PROBER)
    results = ("ok", "gated", "dns_failure", "not_an_agent", "redirect_refused")
    seen = [
        {
            "target_url": url,
            "observed_at": moment(clock.at_s).isoformat(),
            "discovery": {
                "result": result,
                "reason": f"what was seen at {url}",
                **({"latency_ms": 77.0 * place, "status_code": 200} if place < 2 else {}),
            },
        }
        for place, (url, result) in enumerate(zip(urls, results, strict=False), start=1)
    ]
    await report(api, clock, *seen)
    await _end_run(api, "first")
    clock.advance(300)
    await api.ask("PUT", "/api/v1/census/runs/second", run, key=Role.PROBER)
    for observation in seen:
        observation["observed_at"] = moment(clock.at_s).isoformat()
    await report(api, clock, *seen)
    await _end_run(api, "second")


async def _tasks(api: RegistryApi, clock: WoundClock) -> dict[str, str]:
    """Have tasks in every state, one of them with a child, reports and a budget."""
    budget = {"tokens": 20_000, "usd": 1.5}
    hand = await worker(
        api,
        "worker-1",
        name="Worker 1",
        role_id="research",
        capabilities=["any"],
        heartbeat_config=PATIENT,
        monitoring="both",
        card_url=STAFF_CARD.format("worker-1"),
    )
    parent = await create(
        api, "Write the landing page", budget=budget, role_id="research", lease_seconds=3_600
    )
    grant = await hand.granted()
    await hand.report(grant, idempotency_key="one")
    clock.advance(30)
    child_wish = {"title": "Find the brand colours", "budget": {"tokens": 2_000, "usd": 0.1}}
    await hand.write(grant, "delegate", task=child_wish)
    await hand.write(grant, "calls", call_id="call-1", tool="fetch", most={"tokens": 500, "usd": 0.01})
    child = await hand.granted()
    await hand.write(child, "complete", output={"colour": "#3ecf8e"})
    review = await create(api, "Translate the handbook", agent_id="worker-1")
    grant = await hand.granted()
    done = await hand.write(grant, "complete", output={"pages": 12}, report=REPORT | {"summary": LINES})
    assert done.status == 200, done.body
    handoff = await create(api, "Refund order 4711", agent_id="worker-1", input={"note": HOSTILE})
    grant = await hand.granted()
    await hand.write(grant, "help", reason=f"The customer wants more than the rules allow. {HOSTILE}")
    queued = await create(api, "Sort the inbox", role_id="support")
    gone = await create(api, "Old errand")
    await steer(api, gone["task_id"], "cancel", reason="not needed any more")
    return {
        "parent": parent["task_id"],
        "review": review["task_id"],
        "handoff": handoff["task_id"],
        "queued": queued["task_id"],
        "cancelled": gone["task_id"],
    }


async def _let_time_pass(api: RegistryApi, clock: WoundClock) -> None:
    """Let agents without heartbeats fall silent, and the others send heartbeats until now."""
    keys = {
        agent_id: await api.add_agent_key(agent_id)
        for agent_id in [f"{team}-{number}" for team in TEAMS for number in range(1, 9)]
        + ["worker-1", "hostile"]
    }
    while clock.at_s < time.time() - 20:
        clock.advance(min(80.0, time.time() - clock.at_s))
        for agent_id, key in keys.items():
            # They fall silent: one for long, one just now.
            is_silent = agent_id == "billing-7" or (
                agent_id == "support-3" and clock.at_s > time.time() - 200
            )
            if not is_silent:
                await api.send_heartbeat(agent_id, key, current_load=len(agent_id + team_of(agent_id)) % 5)
        await api.sweep()
    for number, agent_id in enumerate(keys):
        if agent_id in {*WATCHED, "worker-1"}:
            observation = _look(clock, agent_id, 30 if number % 7 == 3 else 0)
            status = "degraded" if number % 7 == 3 else "unhealthy" if number == 14 else "healthy"
            observation["document"] |= {"status": status}
            await report(api, clock, observation)
    for name in ("translator", "summariser", "flaky", "flaky"):
        await report(api, clock, _look(clock, name, 57))


def team_of(agent_id: str) -> str:
    """Return the text before the number."""
    return agent_id.partition("-")[0]
