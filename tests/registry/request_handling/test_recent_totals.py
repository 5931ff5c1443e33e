from collections.abc import Callable

import pytest
from tests.support.databases import WoundClock
from tests.support.fleet import add_agents
from tests.support.registry_api import AGENTS, RegistryApi

from lifesign.registry.agents.find_agents import MAX_PAGE
from lifesign.registry.request_handling.recent_totals import (
    CACHE_SECONDS,
    EXACT_UP_TO,
    MAX_TOTALS,
    USABLE_SECONDS,
    RecentTotals,
)
from lifesign.storage.agents.search import AgentFilter
from lifesign.storage.errors import StoreUnavailable

ANY = AgentFilter(statuses=("active",))
FREE = AgentFilter(statuses=("active",), min_available_capacity=2)
MANY = EXACT_UP_TO + 1
NOW_S = 1_763_640_000.0


def counting(total: int) -> Callable[[], int]:
    """Return what counts so many."""
    return lambda: total


def test_large_total_is_cached_briefly() -> None:
    totals = RecentTotals()
    assert totals.total(ANY, NOW_S, counting(MANY)) == MANY
    assert totals.total(ANY, NOW_S + CACHE_SECONDS / 2, counting(9_999)) == MANY
    assert totals.total(FREE, NOW_S, counting(2_000)) == 2_000
    assert totals.total(ANY, NOW_S + CACHE_SECONDS, counting(9_999)) == 9_999


def test_during_a_recount_the_old_total_is_served_unless_too_old() -> None:
    totals = RecentTotals()
    totals.total(ANY, NOW_S, counting(MANY))
    found: list[int] = []

    def count_at(now_s: float) -> Callable[[], int]:
        def count() -> int:
            found.append(totals.total(ANY, now_s, counting(3_000)))
            found.append(totals.total(FREE, now_s, counting(4_000)))
            return 9_999

        return count

    later_s = NOW_S + CACHE_SECONDS
    assert totals.total(ANY, later_s, count_at(later_s)) == 9_999
    assert found == [MANY, 4_000]
    too_late_s = later_s + USABLE_SECONDS
    assert totals.total(ANY, too_late_s, count_at(too_late_s)) == 9_999
    assert found[2] == 3_000


def test_failed_count_is_repeated_by_the_next_request() -> None:
    totals = RecentTotals()
    totals.total(ANY, NOW_S, counting(MANY))

    def fail() -> int:
        raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        totals.total(ANY, NOW_S + CACHE_SECONDS, fail)
    assert totals.total(ANY, NOW_S + CACHE_SECONDS, counting(9_999)) == 9_999


@pytest.mark.parametrize("total", [0, 1, EXACT_UP_TO])
def test_small_total_is_counted_for_each_request(total: int) -> None:
    totals = RecentTotals()
    assert totals.total(ANY, NOW_S, counting(total)) == total
    assert totals.total(ANY, NOW_S, counting(MANY)) == MANY
    assert totals.total(ANY, NOW_S + 2 * CACHE_SECONDS, counting(total)) == total
    assert totals.total(ANY, NOW_S + 2 * CACHE_SECONDS, counting(5)) == 5


def test_total_is_counted_again_after_the_clock_was_set_back() -> None:
    totals = RecentTotals()
    assert totals.total(ANY, NOW_S, counting(MANY)) == MANY
    assert totals.total(ANY, NOW_S - 0.5, counting(9_999)) == 9_999


def test_number_of_cached_totals_is_bounded() -> None:
    totals = RecentTotals()
    filters = [AgentFilter(min_available_capacity=least) for least in range(MAX_TOTALS + 1)]
    for wanted in filters:
        totals.total(wanted, NOW_S, counting(MANY))
    assert totals.total(filters[0], NOW_S, counting(9_999)) == 9_999
    assert totals.total(filters[-1], NOW_S, counting(9_999)) == MANY


def test_largest_page_is_below_the_smallest_cached_total() -> None:
    assert MAX_PAGE <= EXACT_UP_TO


@pytest.mark.both_databases
async def test_new_agent_is_listed_at_once_and_in_a_large_total_later(
    api: RegistryApi, clock: WoundClock
) -> None:
    await add_agents(api.database, MANY)
    assert (await api.ask("GET", f"{AGENTS}?limit=5")).json()["total"] == MANY
    await api.register("newest")
    page = (await api.ask("GET", f"{AGENTS}?limit=1000")).json()
    rest = (await api.ask("GET", f"{AGENTS}?limit=1000&cursor={page['cursor']}")).json()
    assert [agent["agent_id"] for agent in rest["agents"]] == [f"agent-{MANY - 1}", "newest"]
    assert page["total"] == rest["total"] == MANY
    clock.advance(CACHE_SECONDS)
    assert (await api.ask("GET", f"{AGENTS}?limit=5")).json()["total"] == MANY + 1


async def test_total_of_a_single_page_is_its_length(api: RegistryApi) -> None:
    await add_agents(api.database, EXACT_UP_TO)
    assert (await api.ask("GET", f"{AGENTS}?limit=1000")).json()["total"] == EXACT_UP_TO
    await api.ask("DELETE", f"{AGENTS}/agent-0")
    page = (await api.ask("GET", f"{AGENTS}?limit=1000")).json()
    assert page["total"] == len(page["agents"]) == EXACT_UP_TO - 1
