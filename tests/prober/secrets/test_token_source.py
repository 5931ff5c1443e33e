import asyncio

import pytest

from lifesign.domain.credentials.token import AccessToken, TokenFault, TokenFaultKind
from lifesign.prober.secrets.token_source import (
    DROP_SECONDS,
    MAX_PAST_TOKENS,
    MAX_WAIT_SECONDS,
    TokenSource,
)

PATIENCE_SECONDS = 60.0


class Endpoint:
    """Answers requests for tokens, and stores the rejected token of each."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []
        self.fault: TokenFault | None = None
        self.defect: Exception | None = None
        self.held: asyncio.Event | None = None

    async def renew(self, rejected: str | None) -> AccessToken | TokenFault:
        self.asked.append(rejected)
        if self.held is not None:
            await self.held.wait()
        if self.defect is not None:
            raise self.defect
        number = len(self.asked)
        return self.fault or AccessToken(value=f"token-{number}", renew_after_s=90, lifetime_s=100)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def source(endpoint: Endpoint, clock: Clock | None = None) -> TokenSource:
    return TokenSource("acme", endpoint.renew, clock or Clock(), lambda: 1.0)


def fault(retry_after_s: float | None = None) -> TokenFault:
    return TokenFault(kind=TokenFaultKind.REFUSED, reason="HTTP 503", retry_after_s=retry_after_s)


async def test_probes_that_need_a_token_at_once_cause_one_request() -> None:
    endpoint = Endpoint()
    tokens = source(endpoint)
    assert not tokens.secrets()
    assert all(await asyncio.gather(*(tokens.prepare(PATIENCE_SECONDS) for _ in range(1000))))
    assert (tokens.token, len(endpoint.asked)) == ("token-1", 1)


async def answered() -> None:
    """Let a request for a token that no probe waits for end."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_probes_do_not_wait_for_the_renewal_of_a_token() -> None:
    endpoint, clock = Endpoint(), Clock()
    tokens = source(endpoint, clock)
    await tokens.prepare(PATIENCE_SECONDS)
    clock.now_s = 89.0
    await tokens.prepare(PATIENCE_SECONDS)
    assert (tokens.token, tokens.renew_in_s, tokens.left_s) == ("token-1", 1.0, 11.0)
    await answered()
    assert len(endpoint.asked) == 1
    endpoint.held = asyncio.Event()
    clock.now_s = 90.0
    for _ in range(2):
        assert await tokens.prepare(PATIENCE_SECONDS)
    assert (tokens.token, tokens.renew_in_s) == ("token-1", 0.0)
    endpoint.held.set()
    await answered()
    assert (tokens.token, endpoint.asked) == ("token-2", [None, None])


async def test_token_whose_renewal_fails_is_used_until_its_end() -> None:
    endpoint, clock = Endpoint(), Clock()
    tokens = source(endpoint, clock)
    await tokens.prepare(PATIENCE_SECONDS)
    endpoint.fault = fault()
    clock.now_s = 90.0
    assert await tokens.prepare(PATIENCE_SECONDS)
    await answered()
    assert (await tokens.prepare(PATIENCE_SECONDS), tokens.token) == (True, "token-1")
    assert (tokens.renew_in_s, len(endpoint.asked)) == (1.0, 2)
    clock.now_s = 99.0
    assert await tokens.prepare(PATIENCE_SECONDS)
    await answered()
    clock.now_s = 100.0
    assert (tokens.token, tokens.left_s) == (None, 0.0)
    assert not await tokens.prepare(PATIENCE_SECONDS)
    endpoint.fault = None
    clock.now_s = 101.0
    assert await tokens.prepare(PATIENCE_SECONDS)
    assert (tokens.token, tokens.fault) == ("token-4", None)


async def test_failed_requests_back_off_to_a_quarter_of_an_hour() -> None:
    endpoint, clock = Endpoint(), Clock()
    endpoint.fault = fault()
    tokens = source(endpoint, clock)
    waits = []
    for _ in range(14):
        assert not await tokens.prepare(PATIENCE_SECONDS)
        waits.append(tokens.retry_in_s)
        asked = len(endpoint.asked)
        clock.now_s += waits[-1] - 0.5
        assert not await tokens.prepare(PATIENCE_SECONDS)
        assert len(endpoint.asked) == asked
        clock.now_s += 0.5
    assert waits == pytest.approx([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, *[MAX_WAIT_SECONDS] * 4])
    endpoint.fault = None
    assert await tokens.prepare(PATIENCE_SECONDS)
    assert tokens.fault is None


async def test_changed_secret_ends_the_back_off() -> None:
    endpoint = Endpoint()
    endpoint.fault = fault(MAX_WAIT_SECONDS)
    tokens = source(endpoint)
    assert not await tokens.prepare(PATIENCE_SECONDS)
    endpoint.fault = None
    assert not await tokens.prepare(PATIENCE_SECONDS)
    tokens.retry()
    assert await tokens.prepare(PATIENCE_SECONDS)


async def test_retry_after_of_the_token_endpoint_is_followed_within_limits() -> None:
    endpoint, clock = Endpoint(), Clock()
    tokens = source(endpoint, clock)
    for asked_s, wait_s in ((30.0, 30.0), (1e9, MAX_WAIT_SECONDS)):
        endpoint.fault = fault(asked_s)
        clock.now_s += MAX_WAIT_SECONDS
        await tokens.prepare(PATIENCE_SECONDS)
        assert tokens.retry_in_s == wait_s


async def test_a_rejected_token_is_replaced_at_most_once_a_minute() -> None:
    endpoint, clock = Endpoint(), Clock()
    tokens = source(endpoint, clock)
    await tokens.prepare(PATIENCE_SECONDS)
    assert tokens.drop("token-1")
    assert tokens.left_s == 0
    # Another probe that was rejected meanwhile waits for the same request.
    assert tokens.drop("token-1")
    await tokens.prepare(PATIENCE_SECONDS)
    assert endpoint.asked == [None, "token-1"]
    assert tokens.drop("token-1")
    assert not tokens.drop("token-2")
    assert tokens.token == "token-2"
    clock.now_s += DROP_SECONDS
    assert tokens.drop("token-2")


async def test_rejected_token_stays_in_use_without_a_replacement() -> None:
    endpoint = Endpoint()
    tokens = source(endpoint)
    await tokens.prepare(PATIENCE_SECONDS)
    endpoint.fault = fault()
    assert tokens.drop("token-1")
    assert await tokens.prepare(PATIENCE_SECONDS)
    assert tokens.token == "token-1"
    assert tokens.fault is not None


async def test_token_that_is_rejected_during_a_back_off_stays_in_use() -> None:
    """One agent that rejects a token must not take it from the others until the back-off ends."""
    endpoint, clock = Endpoint(), Clock()
    tokens = source(endpoint, clock)
    await tokens.prepare(PATIENCE_SECONDS)
    endpoint.fault = fault(retry_after_s=MAX_WAIT_SECONDS)
    assert tokens.drop("token-1")
    assert await tokens.prepare(PATIENCE_SECONDS)
    clock.now_s += DROP_SECONDS
    assert not tokens.drop("token-1")
    assert tokens.token == "token-1"


async def test_slow_token_endpoint_delays_a_probe_up_to_a_limit() -> None:
    endpoint = Endpoint()
    endpoint.held = asyncio.Event()
    tokens = source(endpoint)
    assert not await tokens.prepare(0.0)
    assert tokens.fault is None
    endpoint.held.set()
    # The token comes all the same, for the next probe.
    assert await tokens.prepare(PATIENCE_SECONDS)
    assert len(endpoint.asked) == 1


async def test_unexpected_error_of_a_token_request_is_a_token_fault(caplog: pytest.LogCaptureFixture) -> None:
    endpoint, clock = Endpoint(), Clock()
    endpoint.defect = KeyError("access-canary-0000")
    tokens = source(endpoint, clock)
    assert not await tokens.prepare(PATIENCE_SECONDS)
    assert tokens.fault is not None
    assert tokens.fault.reason.endswith("KeyError")
    endpoint.defect = None
    clock.now_s += 1
    assert await tokens.prepare(PATIENCE_SECONDS)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING", "WARNING"]


async def test_a_fault_is_logged_once_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    endpoint, clock = Endpoint(), Clock()
    tokens = source(endpoint, clock)
    for given in (fault(), fault(), None, None, fault()):
        endpoint.fault = given
        clock.now_s += MAX_WAIT_SECONDS
        await tokens.prepare(PATIENCE_SECONDS)
    # Fault, end, fault.
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3


async def test_bounded_number_of_former_tokens_is_removed_from_answers() -> None:
    endpoint, clock = Endpoint(), Clock()
    tokens = source(endpoint, clock)
    for _ in range(20):
        await tokens.prepare(PATIENCE_SECONDS)
        clock.now_s += 100
    assert [*tokens.secrets()] == [f"token-{20 - number}" for number in range(1 + MAX_PAST_TOKENS)]


async def test_closing_a_token_source_cancels_its_request() -> None:
    endpoint = Endpoint()
    endpoint.held = asyncio.Event()
    tokens = source(endpoint)
    await tokens.prepare(0.0)
    await tokens.close()
    await source(Endpoint()).close()
    assert tokens.token is None
