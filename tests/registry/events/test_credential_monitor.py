import asyncio
from collections.abc import Collection

import pytest
from tests.support.servers import PATIENCE_SECONDS

from lifesign.registry.events import credential_monitor
from lifesign.registry.events.credential_monitor import CredentialMonitor
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import StoreUnavailable


class Followers:
    """Returns the valid credentials, and stores the calls."""

    def __init__(self) -> None:
        self.good = {"a", "b"}
        self.asked: list[frozenset[str]] = []
        self.is_unreachable = False
        self.is_broken = False
        self.woken = asyncio.Event()

    def among(self, transaction: Transaction, digests: Collection[str]) -> set[str]:
        assert transaction.now_s
        self.asked.append(frozenset(digests))
        if self.is_unreachable:
            raise StoreUnavailable("away")
        if self.is_broken:
            raise RuntimeError("broken")
        return self.good & set(digests)

    async def wake(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.woken.wait()

    async def looks(self, count: int) -> None:
        """Return after so many more looks."""
        most = len(self.asked) + count
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.asked) < most:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.005)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credential_monitor, "CHECK_SECONDS", 0.01)


@pytest.fixture
def followers() -> Followers:
    return Followers()


@pytest.fixture
def watch(database: Database, followers: Followers, quick: None) -> CredentialMonitor:
    return CredentialMonitor(database, followers.among, followers.woken.set)


async def test_only_streams_of_revoked_keys_are_ended(watch: CredentialMonitor, followers: Followers) -> None:
    with watch.following("a"), watch.following("b"):
        await followers.looks(2)
        assert watch.is_good("a")
        assert not followers.woken.is_set()
        followers.good.remove("a")
        await followers.wake()
        assert (watch.is_good("a"), watch.is_good("b")) == (False, True)
    # A returning caller is checked again.
    with watch.following("a"):
        assert watch.is_good("a")


async def test_one_query_serves_all_streams_and_none_without_streams(
    watch: CredentialMonitor, followers: Followers
) -> None:
    with watch.following("a"), watch.following("a"):
        with watch.following("b"):
            await followers.looks(2)
            assert followers.asked[-1] == {"a", "b"}
        await followers.looks(2)
        assert followers.asked[-1] == {"a"}
    seen = len(followers.asked)
    await asyncio.sleep(0.1)
    assert len(followers.asked) <= seen + 1


async def test_streams_continue_briefly_during_an_outage(
    watch: CredentialMonitor, followers: Followers, monkeypatch: pytest.MonkeyPatch
) -> None:
    followers.is_unreachable = True
    with watch.following("a"):
        await followers.looks(2)
        assert watch.is_good("a")
        monkeypatch.setattr(credential_monitor, "MAX_UNKNOWN_SECONDS", 0.0)
        await followers.wake()
        assert not watch.is_good("a")


async def test_failed_read_is_logged_and_the_next_one_counts(
    watch: CredentialMonitor, followers: Followers, caplog: pytest.LogCaptureFixture
) -> None:
    followers.is_broken = True
    with watch.following("a"):
        await followers.wake()
        followers.is_broken, followers.good = False, set()
        followers.woken.clear()
        await followers.wake()
        assert not watch.is_good("a")
    (failure,) = (record for record in caplog.records if record.exc_info)
    assert failure.levelname == "ERROR"


def test_revoked_key_ends_its_streams_within_a_second() -> None:
    assert credential_monitor.CHECK_SECONDS <= 1.0
    assert credential_monitor.MAX_UNKNOWN_SECONDS <= 5.0
