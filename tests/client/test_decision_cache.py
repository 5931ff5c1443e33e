from hypothesis import given
from hypothesis import strategies as st

from lifesign.client.decision_cache import DecisionCache
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.observation.decision import Action, Decision

PROCEED = Decision(Action.PROCEED, HealthStatus.HEALTHY, ("healthy",), None)
AVOID = Decision(Action.AVOID, HealthStatus.UNHEALTHY, ("unhealthy",), 300)


def test_a_decision_is_returned_until_it_expires() -> None:
    cache = DecisionCache()
    cache.put("a", PROCEED, 100.0, 30.0)
    assert cache.get("a", 129.9) is PROCEED
    assert cache.get("a", 130.0) is None
    assert len(cache) == 0


def test_retry_after_of_a_cached_decision_decreases() -> None:
    cache = DecisionCache()
    cache.put("a", AVOID, 0.0, 400.0)
    waits = []
    for now_s in (0.0, 99.5, 399.0):
        found = cache.get("a", now_s)
        assert found is not None
        waits.append(found.retry_after_seconds)
    assert waits == [300, 201, 0]


def test_least_recently_used_decision_is_removed_first() -> None:
    cache = DecisionCache(max_decisions=2)
    cache.put("a", PROCEED, 0.0, 30.0)
    cache.put("b", PROCEED, 0.0, 30.0)
    cache.get("a", 1.0)
    cache.put("c", PROCEED, 1.0, 30.0)
    assert [cache.get(url, 2.0) is not None for url in "abc"] == [True, False, True]


def test_decision_without_a_lifetime_removes_the_cached_one() -> None:
    cache = DecisionCache()
    cache.put("a", PROCEED, 0.0, 30.0)
    cache.put("a", AVOID, 1.0, 0.0)
    assert cache.get("a", 1.0) is None


@given(
    puts=st.lists(st.tuples(st.integers(0, 9), st.floats(-1, 100, allow_nan=False)), max_size=50),
    limit=st.integers(1, 5),
)
def test_cache_never_exceeds_its_limit_and_never_returns_an_expired_decision(
    puts: list[tuple[int, float]], limit: int
) -> None:
    cache = DecisionCache(max_decisions=limit)
    expiry: dict[str, float] = {}
    for now, (number, lifetime) in enumerate(puts):
        cache.put(str(number), PROCEED, float(now), lifetime)
        expiry[str(number)] = now + lifetime
        assert len(cache) <= limit
        for url, expires_at_s in expiry.items():
            assert cache.get(url, float(now)) is None or now < expires_at_s
