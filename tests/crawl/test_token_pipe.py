"""Tokens that one process requests for others, over real pipes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from multiprocessing import Pipe
from typing import Any

import pytest

from lifesign.crawl.token_pipe import MAX_WAITING, TokenOwner, TokenPipe, TokenQuery, TokenReply
from lifesign.domain.credentials.token import AccessToken, TokenFault, TokenFaultKind
from lifesign.prober.definition.credentials import CredentialSettings
from lifesign.prober.secrets.credential_store import Credential, CredentialStore
from lifesign.prober.secrets.secret_reader import Secrets
from lifesign.prober.secrets.token_source import DROP_SECONDS, TokenSource

LIFETIME_S = 90.0
RENEW_AFTER_S = 81.0
SECONDS = 60.0


def access_token(value: str) -> AccessToken:
    return AccessToken(value=value, renew_after_s=RENEW_AFTER_S, lifetime_s=LIFETIME_S)


class Endpoint:
    """Issues numbered tokens, or a fault."""

    def __init__(self) -> None:
        self.requests = 0
        self.fault: TokenFault | None = None

    async def request(self, _credential: Credential, _rejected: str | None) -> AccessToken | TokenFault:
        self.requests += 1
        return self.fault or access_token(f"access-canary-000{self.requests}")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def settings(name: str = "acme", **members: Any) -> CredentialSettings:
    oauth2 = {"token_url": "https://login.example/", "client_id": "a", "client_secret": {"env": "X"}}
    given = {"name": name, "origin": f"https://{name}.example", "oauth2": oauth2} | members
    return CredentialSettings.model_validate(given)


def store(
    request: Callable[..., Any], clock: Clock, *each: CredentialSettings, owns: bool
) -> CredentialStore:
    each = each or (settings(),)
    secrets = Secrets({one.source: "client-canary" for one in each})
    return CredentialStore(each, secrets, clock, request_token=request, owns_tokens=owns)


class Workers:
    """The owner of the tokens, and the stores of several processes that ask it."""

    def __init__(self, owner: CredentialStore, stores: list[CredentialStore]) -> None:
        self.owner = owner
        self.stores = stores

    def sources(self, name: str = "acme") -> list[TokenSource]:
        found = [each.named(name).tokens for each in self.stores]
        return [source for source in found if source is not None]


@asynccontextmanager
async def workers(endpoint: Endpoint, clock: Clock, count: int = 4) -> AsyncIterator[Workers]:
    owner = store(endpoint.request, clock, owns=True)
    service = TokenOwner(owner, SECONDS)
    pipes, stores, answering = [], [], []
    for _ in range(count):
        ours, theirs = Pipe()
        answering.append(service.answering(ours))
        answering[-1].__enter__()
        pipes.append(TokenPipe(theirs))
        stores.append(store(pipes[-1].request, clock, owns=False))
        pipes[-1].pass_tokens_to(stores[-1])
    try:
        yield Workers(owner, stores)
    finally:
        for pipe in pipes:
            pipe.close()
        for each in answering:
            each.__exit__(None, None, None)
        await owner.close()


async def test_all_processes_together_request_a_token_once_in_its_lifetime() -> None:
    endpoint, clock = Endpoint(), Clock()
    async with workers(endpoint, clock) as crew:
        for _ in range(3):
            for source in crew.sources():
                # There are 10,000 targets, in four processes.
                for _ in range(2_500):
                    assert await source.prepare(SECONDS)
            clock.now_s += LIFETIME_S / 3
        assert endpoint.requests == 1
        assert await asyncio.gather(*(source.prepare(SECONDS) for source in crew.sources()))
        assert {source.token for source in crew.sources()} == {"access-canary-0002"}
    assert endpoint.requests == 2


async def known(source: TokenSource, *tokens: str) -> None:
    """Wait until a process removes these tokens from answers."""
    has_come = asyncio.Event()
    source.on_token = lambda _: has_come.set()
    async with asyncio.timeout(SECONDS):
        while source.secrets() != tokens:
            await has_come.wait()
            has_come.clear()


async def test_all_processes_know_a_token_that_one_has_requested() -> None:
    endpoint, clock = Endpoint(), Clock()
    async with workers(endpoint, clock) as crew:
        first, *others = crew.sources()
        await first.prepare(SECONDS)
        for source in others:
            await known(source, "access-canary-0001")
        assert first.drop("access-canary-0001")
        await first.prepare(SECONDS)
        for source in others:
            await known(source, "access-canary-0002", "access-canary-0001")
            assert source.token == "access-canary-0002"


async def test_process_that_starts_late_knows_the_token() -> None:
    endpoint, clock = Endpoint(), Clock()
    owner = store(endpoint.request, clock, owns=True)
    service = TokenOwner(owner, SECONDS)
    await service.token("acme", None)
    ours, theirs = Pipe()
    with service.answering(ours):
        pipe = TokenPipe(theirs)
        await asyncio.wait_for(pipe.request(Credential(settings(), "client-canary"), None), SECONDS)
        # The notice came before the credentials of the process existed.
        late = store(pipe.request, clock, owns=False)
        pipe.pass_tokens_to(late)
        await known(late.token_sources[0], "access-canary-0001")
        pipe.close()


async def test_process_that_does_not_read_gets_a_limited_number_of_notices() -> None:
    endpoint, clock = Endpoint(), Clock()
    owner = store(endpoint.request, clock, owns=True)
    service = TokenOwner(owner, SECONDS)
    ours, theirs = Pipe()
    with service.answering(ours):
        for number in range(2 * MAX_WAITING):
            owner.token_sources[0].take(access_token(f"access-canary-{number:04}"))
        count = 0
        while await asyncio.to_thread(theirs.poll, 0.2):
            theirs.recv()
            count += 1
    assert count == MAX_WAITING
    theirs.close()


async def test_late_token_request_gets_the_remaining_lifetime() -> None:
    endpoint, clock = Endpoint(), Clock()
    async with workers(endpoint, clock, 2) as crew:
        first, second = crew.sources()
        await first.prepare(SECONDS)
        clock.now_s += 78
        await second.prepare(SECONDS)
        for source in (first, second):
            assert source.token == "access-canary-0001"
            assert (source.renew_in_s, source.left_s) == (3, 12)


async def test_failed_renewal_leaves_all_processes_the_token_until_its_end() -> None:
    endpoint, clock = Endpoint(), Clock()
    async with workers(endpoint, clock) as crew:
        for source in crew.sources():
            await source.prepare(SECONDS)
        endpoint.fault = TokenFault(kind=TokenFaultKind.SERVER_ERROR, reason="HTTP 503", retry_after_s=5.0)
        clock.now_s += RENEW_AFTER_S
        owner = TokenOwner(crew.owner, SECONDS)
        for in_s in (1, 5):
            # The first answer arrives before that of the token endpoint.
            found = await owner.token("acme", None)
            assert isinstance(found, AccessToken)
            assert (found.value, found.renew_after_s) == ("access-canary-0001", in_s)
            assert found.lifetime_s == LIFETIME_S - RENEW_AFTER_S
            await asyncio.sleep(0)
        for source in crew.sources():
            assert await source.prepare(SECONDS)
            assert source.token == "access-canary-0001"
        clock.now_s += LIFETIME_S - RENEW_AFTER_S
        endpoint.fault = None
        for source in crew.sources():
            assert await source.prepare(SECONDS)
            assert source.token == "access-canary-0003"
    assert endpoint.requests == 3


async def test_processes_together_replace_a_rejected_token_once_a_minute() -> None:
    endpoint, clock = Endpoint(), Clock()
    async with workers(endpoint, clock) as crew:
        sources = crew.sources()
        for number in (1, 2):
            for source in sources:
                await source.prepare(SECONDS)
            for source in sources:
                source.drop(f"access-canary-000{number}")
                await source.prepare(SECONDS)
            # The first round is replaced, the second one comes too early.
            assert {source.token for source in sources} == {"access-canary-0002"}
        assert endpoint.requests == 2
        clock.now_s += DROP_SECONDS
        for source in sources:
            assert source.drop("access-canary-0002")
            await source.prepare(SECONDS)
        assert {source.token for source in sources} == {"access-canary-0003"}


async def test_only_the_token_owner_waits_for_the_end_of_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    endpoint, clock = Endpoint(), Clock()
    endpoint.fault = TokenFault(kind=TokenFaultKind.REFUSED, reason="HTTP 503", retry_after_s=600.0)
    async with workers(endpoint, clock) as crew:
        for source in crew.sources():
            assert not await source.prepare(SECONDS)
            assert source.fault is not None
            assert (source.fault.kind, source.fault.reason) == ("refused", "HTTP 503")
            assert source.retry_in_s <= 1
        clock.now_s += 599
        for source in crew.sources():
            assert not await source.prepare(SECONDS)
        assert endpoint.requests == 1
        endpoint.fault = None
        clock.now_s += 1
        for source in crew.sources():
            assert await source.prepare(SECONDS)
    assert endpoint.requests == 2
    # One warning for the fault and one for its end.
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


async def test_process_knows_why_its_rejected_token_was_not_replaced() -> None:
    endpoint, clock = Endpoint(), Clock()
    async with workers(endpoint, clock, 1) as crew:
        (source,) = crew.sources()
        await source.prepare(SECONDS)
        endpoint.fault = TokenFault(kind=TokenFaultKind.SERVER_ERROR, reason="HTTP 500")
        assert source.drop("access-canary-0001")
        assert await source.prepare(SECONDS)
        assert source.token == "access-canary-0001"
        assert source.fault == endpoint.fault
        endpoint.fault = None
        clock.now_s += DROP_SECONDS
        assert source.drop("access-canary-0001")
        assert await source.prepare(SECONDS)
        assert source.token == "access-canary-0003"


async def test_changed_secret_ends_the_wait_of_all_processes() -> None:
    endpoint, clock = Endpoint(), Clock()
    endpoint.fault = TokenFault(kind=TokenFaultKind.REFUSED, reason="HTTP 503", retry_after_s=600.0)
    async with workers(endpoint, clock) as crew:
        for source in crew.sources():
            assert not await source.prepare(SECONDS)
        endpoint.fault = None
        crew.owner.named("acme").change("another-client-secret")
        clock.now_s += 1
        for source in crew.sources():
            assert await source.prepare(SECONDS)
    assert endpoint.requests == 2


async def test_credentials_of_the_same_client_share_their_tokens() -> None:
    endpoint, clock = Endpoint(), Clock()
    same, other = settings("b"), settings("c", oauth2={**settings().oauth2.model_dump(), "scope": "x"})  # type: ignore[union-attr]
    both = store(endpoint.request, clock, settings("a"), same, other, owns=True)
    tokens = [both.named(name).tokens for name in "abc"]
    assert tokens[0] is tokens[1]
    assert tokens[0] is not tokens[2]


async def test_token_request_without_the_owner_process_is_a_fault() -> None:
    ours, theirs = Pipe()
    pipe = TokenPipe(theirs)
    credential = Credential(settings(), "client-canary")
    waiting = asyncio.create_task(pipe.request(credential, None))
    await asyncio.sleep(0)
    ours.close()
    for answer in (await waiting, await pipe.request(credential, None)):
        assert isinstance(answer, TokenFault)
        assert answer.kind == "no_answer"
    pipe.close()


async def test_a_process_that_ends_leaves_the_owner_running() -> None:
    endpoint, clock = Endpoint(), Clock()
    async with workers(endpoint, clock, 1) as crew:
        service = TokenOwner(crew.owner, SECONDS)
        ours, theirs = Pipe()
        with service.answering(ours):
            theirs.send(TokenQuery(1, "acme"))
            theirs.close()
            (source,) = crew.sources()
            assert await source.prepare(SECONDS)
    assert endpoint.requests == 1


def test_no_text_shows_a_token() -> None:
    assert "access-canary-0000" not in repr(TokenQuery(1, "acme", "access-canary-0001"))


async def test_credential_without_tokens_has_a_fault_instead() -> None:
    bearer = settings(oauth2=None, bearer={"env": "X"})
    owner = TokenOwner(store(Endpoint().request, Clock(), bearer, owns=True), SECONDS)
    found = await owner.token("acme", None)
    assert isinstance(found, TokenFault)
    assert found.kind == "no_answer"


async def test_answer_to_a_cancelled_request_is_ignored() -> None:
    ours, theirs = Pipe()
    pipe = TokenPipe(theirs)
    credential = Credential(settings(), "client-canary")
    leaving = asyncio.create_task(pipe.request(credential, None))
    staying = asyncio.create_task(pipe.request(credential, None))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    for number in (1, 2):
        ours.send(TokenReply(number, access_token(f"access-token-no-{number}")))
    found = await staying
    assert isinstance(found, AccessToken)
    assert found.value == "access-token-no-2"
    pipe.close()
    ours.close()
