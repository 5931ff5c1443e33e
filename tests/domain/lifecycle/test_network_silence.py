"""Mass silence of a network class."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.lifecycle.network_silence import (
    ClassCounts,
    MassSilence,
    MassSilencePolicy,
    is_mass_silence,
    needed,
    next_mass_silence,
    silent_keys,
)
from lifesign.errors import InvalidValue

NOW_S = 1_782_900_000.0


def counts(addresses: int, silent: int, apart_s: float = 0.0) -> ClassCounts:
    """Return so many addresses, some of which fell silent one after the other."""
    return ClassCounts(addresses=addresses, silent_s=tuple(NOW_S + apart_s * each for each in range(silent)))


@pytest.mark.parametrize(
    ("addresses", "least"),
    [(0, None), (1, None), (2, None), (3, 3), (4, 3), (8, 6), (11, 9), (12, 6), (13, 7), (100, 50)],
)
def test_mass_silence_needs_half_of_many_or_three_quarters_of_few_addresses(
    addresses: int, least: int | None
) -> None:
    assert needed(addresses) == least
    for silent in range(addresses + 1):
        assert is_mass_silence(counts(addresses, silent)) is (least is not None and silent >= least)


def test_addresses_that_fell_silent_far_apart_are_no_mass_silence() -> None:
    assert is_mass_silence(counts(12, 6, apart_s=180))
    assert not is_mass_silence(counts(12, 6, apart_s=180.1))
    # Six of them are close enough together.
    assert is_mass_silence(ClassCounts(addresses=12, silent_s=(NOW_S - 1e6, *counts(12, 6).silent_s)))
    shorter = MassSilencePolicy(together_seconds=30)
    assert is_mass_silence(counts(12, 6, apart_s=6), shorter)
    assert not is_mass_silence(counts(12, 6, apart_s=7), shorter)


def test_addresses_fell_silent_together_within_two_probe_intervals() -> None:
    hourly = replace(counts(12, 6, apart_s=1_440), interval_s=3_600)
    assert is_mass_silence(hourly)
    assert not is_mass_silence(replace(hourly, interval_s=3_599))
    assert not is_mass_silence(replace(hourly, interval_s=300))
    # A short interval does not make the window shorter.
    assert is_mass_silence(replace(counts(12, 6, apart_s=180), interval_s=10))


def test_longest_interval_of_the_keys_counts_for_their_common_addresses() -> None:
    by_key = {key: counts(4, 2, apart_s=3_600) for key in "abc"}
    assert silent_keys(by_key) == ()
    by_key = {"a": by_key["a"], **{key: replace(by_key[key], interval_s=1_800) for key in "bc"}}
    assert silent_keys(by_key) == ("a", "b", "c")


def test_one_key_with_a_long_interval_makes_no_class_silent_for_others() -> None:
    by_key = {key: counts(12, 7, apart_s=3_600) for key in "abcdefghij"}
    hostile = ClassCounts(addresses=1, silent_s=(), interval_s=86_400)
    assert silent_keys({**by_key, "z": hostile}) == ("z",)


@given(st.integers(3, 60), st.lists(st.integers(0, 3_000), max_size=60))
def test_one_more_silent_address_never_ends_a_mass_silence(addresses: int, silent: list[int]) -> None:
    last_s = tuple(NOW_S + each for each in silent[:addresses])
    if is_mass_silence(ClassCounts(addresses=addresses, silent_s=last_s)):
        more = ClassCounts(addresses=addresses, silent_s=(*last_s, NOW_S))
        assert is_mass_silence(more)


def test_network_class_stores_when_its_mass_silence_began() -> None:
    first = next_mass_silence(MassSilence(), {"a": {"k": counts(3, 3)}, "b": {"k": counts(3, 2)}}, NOW_S)
    assert (first.classes, first.keys) == ({"a": NOW_S}, {"a": ("k",)})
    later = next_mass_silence(first, {"a": {"k": counts(3, 3)}, "b": {"k": counts(3, 3)}}, NOW_S + 5)
    assert later.classes == {"a": NOW_S, "b": NOW_S + 5}
    assert (later.classes_for("k"), later.classes_for("other")) == (["a", "b"], [])
    assert next_mass_silence(later, {}, NOW_S + 10) == MassSilence(counted_at_s=NOW_S + 10)


@pytest.mark.parametrize(
    ("by_key", "silent"),
    [
        # A single key is compared with its own targets.
        ({"a": (12, 6)}, "a"),
        ({"a": (12, 5)}, ""),
        # The reports of one key never make a class silent for another key.
        ({"a": (12, 0), "b": (500, 500)}, "b"),
        ({"a": (12, 0), "b": (500, 500), "c": (12, 0)}, "b"),
        # Each key is compared with its own targets at least, whatever the others report as alive.
        ({"a": (12, 6), "b": (500, 0)}, "a"),
        # The rest supports it without any one of the others.
        ({"a": (4, 2), "b": (10, 8), "c": (10, 8)}, "abc"),
        ({"a": (2, 2), "b": (2, 2), "c": (2, 2)}, "abc"),
        ({"a": (2, 2), "b": (2, 2)}, "ab"),
        # Addresses that fell silent together, divided between keys.
        ({"a": (4, 3), "b": (4, 3), "c": (4, 2)}, "abc"),
        ({"a": (6, 4), "b": (6, 4)}, "ab"),
        ({"a": (2, 2), "b": (2, 2), "c": (2, 2), "d": (2, 2), "z": (1_000, 0)}, "abcd"),
        # One dead agent and a hostile key, and a little less than a quarter.
        ({"a": (3, 1), "b": (500, 500)}, "b"),
        ({"a": (12, 2), "b": (500, 500)}, "b"),
        # Two keys, and the cut spares most targets of one of them.
        ({"a": (6, 5), "b": (6, 1)}, "a"),
    ],
)
def test_no_single_key_makes_a_class_silent_for_others(
    by_key: dict[str, tuple[int, int]], silent: str
) -> None:
    assert silent_keys({key: counts(*each) for key, each in by_key.items()}) == tuple(silent)


@given(
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1),
    st.integers(0, 1_000),
    st.integers(0, 1_000),
)
def test_one_key_cannot_silence_an_answering_class(
    others: dict[str, tuple[int, int]], addresses: int, silent: int
) -> None:
    alive = {key: counts(most, 0) for key, (most, _) in others.items()}
    hostile = counts(addresses, min(addresses, silent))
    assert set(silent_keys({**alive, "z": hostile})) <= {"z"}


@st.composite
def _divided_cuts(draw: st.DrawFn) -> dict[str, ClassCounts]:
    """Draw three keys or more with equal shares, and an outage that one key with all would notice."""
    keys = draw(st.integers(3, 6))
    addresses = draw(st.integers(2 * keys, 60))
    least = needed(addresses)
    assert least is not None
    cut = draw(st.sets(st.integers(0, addresses - 1), min_size=least))
    # Answering targets answered at any time; cut-off ones answered last within an interval.
    return {
        f"k{key}": ClassCounts(
            addresses=len(range(key, addresses, keys)),
            silent_s=tuple(NOW_S + each for each in range(key, addresses, keys) if each in cut),
        )
        for key in range(keys)
    }


@given(_divided_cuts(), st.integers(0, 1_000), st.integers(0, 1_000))
def test_reports_of_one_more_key_do_not_hide_a_mass_silence_from_other_keys(
    honest: dict[str, ClassCounts], addresses: int, silent: int
) -> None:
    assert silent_keys(honest) == tuple(sorted(honest))
    hostile = counts(addresses, min(addresses, silent))
    assert set(silent_keys({**honest, "z": hostile})) >= set(honest)


@given(
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(8, 20), st.integers(0, 1)), min_size=1),
    st.integers(0, 1_000),
    st.integers(0, 1_000),
)
def test_a_hostile_key_needs_a_quarter_of_the_addresses_of_others(
    others: dict[str, tuple[int, int]], addresses: int, silent: int
) -> None:
    honest = {key: counts(*each) for key, each in others.items()}
    hostile = counts(addresses, min(addresses, silent))
    assert set(silent_keys({**honest, "z": hostile})) <= {"z"}


@pytest.mark.parametrize("wrong", [{"expected_seconds": 0}, {"together_seconds": 86_401}])
def test_invalid_silence_policy_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        MassSilencePolicy(**wrong)
