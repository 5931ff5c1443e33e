import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.registry_server import RegistryServer
from tests.support.renewing import LONG_SECONDS, renew_soon
from tests.support.servers import PATIENCE_SECONDS
from tests.support.sleeping_machine import SleepingMachine
from tests.support.virtual_loop import in_virtual_time, virtual_loop

from lifesign.boot_clock import CHECK_SECONDS, now_s
from lifesign.client import RegistryClient
from lifesign.client.lease_keeper import LeaseKeeper, LossKind
from lifesign.client.registry_tasks import HeldRun

WINDOW_S = 300.0
NO_ANSWER = 0
"""Carried out, and the connection closed before the answer."""
HANGS = -1


@dataclass
class Renewing:
    """A registry that renews leases; `answers` replaces its answers, request by request."""

    url: str = ""
    asked_s: list[float] = field(default_factory=list)
    asked: list[tuple[str, Any, str | None]] = field(default_factory=list)
    answers: deque[int | web.Response] = field(default_factory=deque)
    always: int | None = None
    answers_after_s: float = 0.0

    async def answer(self, request: web.Request) -> web.Response:
        at_s = now_s()
        self.asked_s.append(at_s)
        body = await request.json()
        self.asked.append((request.path, body, request.headers.get("X-Agent-Incarnation")))
        answer = self.answers.popleft() if self.answers else self.always
        if self.answers_after_s:
            await asyncio.sleep(self.answers_after_s)
        if answer == HANGS:
            await asyncio.sleep(1_000_000)
        if answer == NO_ANSWER:
            assert request.transport is not None
            request.transport.abort()
            raise web.HTTPBadRequest
        if isinstance(answer, web.Response):
            return answer
        if answer is not None:
            return refusal(answer, "no")
        return web.json_response(lease(at_s, body["ttl_seconds"]))


def lease(now_s: float, ttl_s: float) -> dict[str, Any]:
    return {
        "lease_id": "lease-1",
        "resource": "task:1",
        "holder": "a",
        "fencing_token": 17,
        "acquired_at": datetime.fromtimestamp(now_s, UTC).isoformat(),
        "expires_at": datetime.fromtimestamp(now_s + ttl_s, UTC).isoformat(),
    }


def refusal(status: int, code: str, **headers: str) -> web.Response:
    return web.json_response(
        {"error": {"code": code, "message": code}}, status=status, headers=headers or None
    )


@contextlib.asynccontextmanager
async def renewing() -> AsyncIterator[tuple[Renewing, RegistryClient]]:
    registry = Renewing()
    app = web.Application()
    app.router.add_post("/{path:.*}", registry.answer)
    server = TestServer(app, host="127.0.0.1")
    await server.start_server()
    registry.url = str(server.make_url("")).rstrip("/")
    try:
        async with RegistryClient(registry.url) as client:
            yield registry, client
    finally:
        await server.close()


def keeper_of(
    client: RegistryClient,
    *,
    chance: Callable[[], float] = lambda: 0.5,
    window_s: float = WINDOW_S,
    requested_at_s: float | None = None,
    grace_s: float = 0.0,
    renewed: Callable[[float], None] | None = None,
) -> LeaseKeeper:
    return LeaseKeeper(
        client.leases,
        "lease-1",
        fencing_token=17,
        deadline_s=(now_s() if requested_at_s is None else requested_at_s) + window_s,
        window_s=window_s,
        incarnation=3,
        grace_s=grace_s,
        renewed=renewed,
        chance=chance,
    )


@contextlib.asynccontextmanager
async def kept(keeper: LeaseKeeper) -> AsyncIterator[LeaseKeeper]:
    keeping = asyncio.create_task(keeper.run())
    try:
        yield keeper
    finally:
        keeper.stop_keeping()
        await keeping


@in_virtual_time
async def test_lease_is_renewed_at_60_percent_of_its_time() -> None:
    async with renewing() as (registry, client):
        began_s = now_s()
        async with kept(keeper_of(client)) as keeper:
            await asyncio.sleep(600)
            assert keeper.is_held()
        assert [round(at_s - began_s) for at_s in registry.asked_s] == [180, 360, 540]
        path = "/api/v1/leases/lease-1/renew"
        assert registry.asked[0] == (path, {"fencing_token": 17, "ttl_seconds": 300.0}, "3")


@in_virtual_time
async def test_case_16_leases_granted_together_are_renewed_at_different_times() -> None:
    async with renewing() as (registry, client):
        began_s = now_s()
        chances = iter([number / 300 for number in range(300)])
        keepers = [keeper_of(client, chance=partial(next, chances, 0.5)) for _ in range(300)]
        keeping = [asyncio.create_task(keeper.run()) for keeper in keepers]
        await asyncio.sleep(200)
        for keeper in keepers:
            keeper.stop_keeping()
        await asyncio.gather(*keeping)
        assert len(registry.asked_s) == 300
        within_s = [at_s - began_s for at_s in registry.asked_s]
        assert 164 < min(within_s) < 166
        assert 194 < max(within_s) < 196
        # Evenly spread they would be 10 in each of 30 seconds.
        assert max(Counter(int(at_s) for at_s in within_s).values()) <= 15


@in_virtual_time
async def test_lease_in_doubt_is_renewed_at_once() -> None:
    async with renewing() as (registry, client):
        began_s = now_s()
        async with kept(keeper_of(client)) as keeper:
            await asyncio.sleep(20)
            keeper.renew_now()
            await asyncio.sleep(200)
            assert keeper.is_held()
        assert [round(at_s - began_s) for at_s in registry.asked_s] == [20, 200]


@in_virtual_time
async def test_case_17_deadline_counts_from_the_time_of_the_request() -> None:
    async with renewing() as (registry, client):
        registry.answers_after_s = 4.0
        async with kept(keeper_of(client)) as keeper:
            await asyncio.sleep(190)
            assert keeper.deadline_s == pytest.approx(registry.asked_s[0] + WINDOW_S, abs=0.01)


@in_virtual_time
async def test_case_18_lost_renewal_answer_does_not_lose_the_lease() -> None:
    async with renewing() as (registry, client):
        registry.answers.extend([NO_ANSWER] * 12)
        async with kept(keeper_of(client)) as keeper:
            await asyncio.sleep(299)
            assert keeper.is_held()
            assert len(registry.asked) > 12
            await asyncio.sleep(300)
            assert keeper.is_held()


@in_virtual_time
async def test_hanging_renewal_leaves_time_for_a_retry() -> None:
    async with renewing() as (registry, client):
        registry.answers.extend([HANGS] * 2)
        async with kept(keeper_of(client, window_s=10)) as keeper:
            await asyncio.sleep(15)
            assert keeper.is_held()


@in_virtual_time
async def test_unanswered_renewal_loses_the_lease_at_its_deadline() -> None:
    async with renewing() as (registry, client):
        registry.always = HANGS
        async with kept(keeper_of(client)) as keeper:
            deadline_s = keeper.deadline_s
            loss = await keeper.wait_lost()
            assert now_s() == pytest.approx(deadline_s, abs=0.01)
            assert loss.kind is LossKind.EXPIRED
            assert not keeper.is_held()


@in_virtual_time
async def test_holder_learns_that_its_lease_ended_while_the_machine_slept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = SleepingMachine(monkeypatch)
    async with renewing() as (registry, client), kept(keeper_of(client)) as keeper:
        await asyncio.sleep(10)
        machine.sleep(WINDOW_S)
        woke_s = now_s()
        assert not keeper.is_held()
        loss = await keeper.wait_lost()
        assert (loss.kind, registry.asked) == (LossKind.EXPIRED, [])
        assert now_s() - woke_s <= CHECK_SECONDS + 0.01


@in_virtual_time
async def test_holder_learns_it_while_its_renewal_gets_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SleepingMachine(monkeypatch)
    async with renewing() as (registry, client), kept(keeper_of(client)) as keeper:
        registry.always = HANGS
        await asyncio.sleep(181)
        machine.sleep(WINDOW_S)
        woke_s = now_s()
        assert (await keeper.wait_lost()).kind is LossKind.EXPIRED
        assert now_s() - woke_s <= CHECK_SECONDS + 0.01


@in_virtual_time
async def test_lease_that_outlasts_the_sleep_is_renewed_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SleepingMachine(monkeypatch)
    async with renewing() as (registry, client), kept(keeper_of(client)) as keeper:
        await asyncio.sleep(10)
        machine.sleep(200)
        woke_s = now_s()
        await asyncio.sleep(CHECK_SECONDS + 1)
        assert keeper.is_held()
        assert registry.asked_s[0] - woke_s <= CHECK_SECONDS
        assert keeper.deadline_s == pytest.approx(registry.asked_s[0] + WINDOW_S, abs=0.1)


@in_virtual_time
@pytest.mark.parametrize(("grace_s", "notice_s"), [(10.0, 10.0), (1_000.0, 60.0)])
async def test_slow_work_is_notified_before_the_deadline(grace_s: float, notice_s: float) -> None:
    async with renewing() as (registry, client):
        registry.always = HANGS
        async with kept(keeper_of(client, grace_s=grace_s)) as keeper:
            deadline_s = keeper.deadline_s
            assert (await keeper.wait_lost()).kind is LossKind.EXPIRED
            assert now_s() == pytest.approx(deadline_s - notice_s, abs=0.01)
            assert len(registry.asked) > 2


@in_virtual_time
async def test_late_renewal_counts_although_work_would_have_been_notified() -> None:
    async with renewing() as (registry, client):
        deadlines: list[float] = []
        late = keeper_of(
            client, window_s=10, requested_at_s=now_s() - 9, grace_s=10, renewed=deadlines.append
        )
        async with kept(late) as keeper:
            await asyncio.sleep(20)
            assert keeper.is_held()
        assert deadlines == [pytest.approx(at_s + 10, abs=0.01) for at_s in registry.asked_s]


@in_virtual_time
async def test_refused_renewal_loses_the_lease_at_once() -> None:
    for status, kind in [(412, LossKind.REFUSED), (410, LossKind.REFUSED), (401, LossKind.UNAUTHORIZED)]:
        async with renewing() as (registry, client):
            registry.always = status
            async with kept(keeper_of(client)) as keeper:
                began_s = now_s()
                loss = await keeper.wait_lost()
                assert now_s() - began_s == pytest.approx(180, abs=0.1)
                assert (loss.kind, keeper.is_held(), len(registry.asked)) == (kind, False, 1)
                assert str(status) in str(loss)


@in_virtual_time
@pytest.mark.parametrize(
    ("code", "details", "why"),
    [
        ("lease_ended", {"end_reason": "expired"}, "its lease has expired in the registry"),
        ("lease_ended", {"end_reason": ["odd"]}, "HTTP 412: over"),
        ("lease_ended", {}, "HTTP 412: over"),
        ("stale_token", {}, "another holder has acquired it meanwhile"),
    ],
)
async def test_reason_of_the_refusal_is_available_without_a_request(
    code: str, details: dict[str, Any], why: str
) -> None:
    async with renewing() as (registry, client):
        error = {"error": {"code": code, "message": "over", "details": details}}
        registry.answers.append(web.json_response(error, status=412))
        async with kept(keeper_of(client)) as keeper:
            assert (await keeper.wait_lost()).why == why


@in_virtual_time
async def test_only_a_refusal_of_the_registry_ends_renewal() -> None:
    async with renewing() as (registry, client):
        html = web.Response(status=403, text="<html>maintenance", content_type="text/html")
        patience = refusal(503, "store_unavailable", **{"Retry-After": "7"})
        registry.answers.extend([html, 500, refusal(429, "rate_limited", **{"Retry-After": "20"}), patience])
        async with kept(keeper_of(client)) as keeper:
            await asyncio.sleep(290)
            assert keeper.is_held()
            assert len(registry.asked) == 5


@in_virtual_time
async def test_last_received_answer_is_the_reason_of_a_loss() -> None:
    async with renewing() as (registry, client):
        page = web.Response(text="<html>log in", content_type="text/html")
        registry.answers.append(page)
        registry.always = HANGS
        async with kept(keeper_of(client, window_s=10)) as keeper:
            loss = await keeper.wait_lost()
        assert loss.kind is LossKind.EXPIRED
        assert loss.why.startswith("the lease could not be renewed before its deadline; HTTP 200: this is no")
        assert "'text/html'" in loss.why


@in_virtual_time
async def test_unforeseen_error_loses_the_lease_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    def break_down(_: float) -> None:
        raise ValueError("no such timer\nand more")

    async with renewing() as (_, client), kept(keeper_of(client, renewed=break_down)) as keeper:
        loss = await keeper.wait_lost()
        assert (loss.kind, keeper.is_held()) == (LossKind.EXPIRED, False)
        assert loss.why.endswith(": ValueError: no such timer")
    (message,) = caplog.messages
    assert message.startswith("lease lease-1 ")


@in_virtual_time
async def test_request_that_fails_with_an_unforeseen_error_is_retried(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with renewing() as (registry, client):
        errors = deque([OSError("too many open files")] * 2)
        renew = client.leases.renew

        async def renew_later(*args: Any, **kwargs: Any) -> Any:
            if errors:
                raise errors.popleft()
            return await renew(*args, **kwargs)

        monkeypatch.setattr(client.leases, "renew", renew_later)
        async with kept(keeper_of(client)) as keeper:
            await asyncio.sleep(2 * WINDOW_S)
            assert keeper.is_held()
        assert registry.asked_s
    assert [record.exc_info is None for record in caplog.records] == [False, True]


@in_virtual_time
async def test_process_suspended_past_the_deadline_loses_the_lease_without_a_request() -> None:
    async with renewing() as (registry, client):
        async with kept(keeper_of(client)) as keeper:
            await asyncio.sleep(1)
            virtual_loop().stand_still(400)
            assert not keeper.is_held()
            assert (await keeper.wait_lost()).kind is LossKind.EXPIRED
        assert registry.asked == []


@in_virtual_time
async def test_late_grant_is_held_if_a_renewal_succeeds() -> None:
    async with renewing() as (registry, client):
        requested_at_s = now_s() - 20
        async with kept(keeper_of(client, window_s=10, requested_at_s=requested_at_s)) as keeper:
            assert not keeper.is_held()
            assert await keeper.wait_until_held()
            assert keeper.is_held()
        registry.always = 412
        async with kept(keeper_of(client, window_s=10, requested_at_s=requested_at_s)) as keeper:
            assert not await keeper.wait_until_held()


@in_virtual_time
async def test_grant_shortly_before_its_deadline_is_held_once_it_is_renewed() -> None:
    async with renewing() as (registry, client):
        # One second of 26 is left, and each answer takes 3 s.
        registry.answers_after_s = 3.0
        requested_at_s = now_s() - 25
        async with kept(keeper_of(client, window_s=26, requested_at_s=requested_at_s)) as keeper:
            begun_s = now_s()
            assert await keeper.wait_until_held()
            assert keeper.deadline_s == pytest.approx(begun_s + 26, abs=0.1)
        assert len(registry.asked) == 1


@in_virtual_time
async def test_stopped_keeper_sends_no_requests() -> None:
    async with renewing() as (registry, client):
        keeper = keeper_of(client)
        keeping = asyncio.create_task(keeper.run())
        await asyncio.sleep(1)
        keeper.stop_keeping()
        await keeping
        assert registry.asked == []
        assert not keeper.is_held()
        assert (await keeper.wait_lost()).kind is LossKind.STOPPED


@in_virtual_time
async def test_cancelled_keeper_does_not_hold_the_lease() -> None:
    async with renewing() as (_, client):
        keeper = keeper_of(client)
        keeping = asyncio.create_task(keeper.run())
        await asyncio.sleep(1)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        assert not keeper.is_held()


async def test_lease_of_a_task_is_renewed_until_cancellation(
    client: RegistryClient, registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew_soon(monkeypatch)
    key = (await client.agents.register("worker")).agent_key
    made = await client.tasks.create("Write it", lease_seconds=LONG_SECONDS)
    async with RegistryClient(registry.url, key=key) as own:
        granted = await own.tasks.claim()
        assert granted is not None
        renewed: asyncio.Queue[float] = asyncio.Queue()
        keeper = LeaseKeeper.of_task(own.leases, granted, renewed=renewed.put_nowait)
        async with kept(keeper), asyncio.timeout(PATIENCE_SECONDS):
            assert granted.deadline_s < await renewed.get() < await renewed.get()
            assert keeper.is_held()
            run = HeldRun.of(granted)
            await own.tasks.report_progress(run, {"summary": "on it"}, idempotency_key="1")
            await client.tasks.cancel(made.task_id)
            loss = await keeper.wait_lost()
            assert (loss.kind, "cancelled" in loss.why) == (LossKind.REFUSED, True)
