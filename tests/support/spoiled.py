"""Strategies for what a stranger may send: documents with odd values, and texts cut and joined."""

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

ODD_VALUES: list[Any] = [
    None, True, False, 0, -1, 2**63, 10**400, 0.5, 1e308,
    "", " ", "\x00", "\ud800", "\u202e", "é", "a" * 5_000, "1" * 5_000, "//", "../..", "{{host}}", "%zz",
    "http://[::1", "http://[::1]@", "http://a:99999/", "https://a.example/" + "b" * 5_000, "xn--a",
    "\u0660.example",
    [], [[]], [{}], [None], ["a"],
    {}, {"": ""}, {"url": {}}, {"name": []}, {"a": {"a": {"a": {}}}}, {"type": []}, {"uri": []},
    {"$schema": 1}, {"path": 1}, {"\ud800": 1},
]  # fmt: skip
"""Values of all kinds, many of them at a bound of some reader."""


def _places(value: Any, way: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the ways to all values within a value, itself included."""
    inner: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [way, *(found for key, member in inner for found in _places(member, (*way, key)))]


def _replaced(value: Any, way: tuple[str | int, ...], odd: Any) -> Any:
    """Return a copy of a value with another value at the end of a way."""
    if not way:
        return odd
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[way[0]] = _replaced(copy[way[0]], way[1:], odd)
    return copy


ONE_OF_EACH: list[Any] = [None, True, -1, 10**400, "", "\ud800", "http://[::1", [], [[]], {}, {"": ""}]
"""A value of each kind, and some texts that break readers."""


def spoiled_once(samples: list[Any]) -> Iterator[Any]:
    """Yield each sample with one value replaced: every value, by one of each kind."""
    for sample in samples:
        for way in _places(sample):
            for odd in ONE_OF_EACH:
                yield _replaced(sample, way, odd)


@st.composite
def spoiled(draw: st.DrawFn, samples: list[Any]) -> Any:
    """Draw a sample in which one to three values are odd."""
    value = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(1, 3))):
        value = _replaced(value, draw(st.sampled_from(_places(value))), draw(st.sampled_from(ODD_VALUES)))
    return value


@st.composite
def cut_and_joined(draw: st.DrawFn, samples: list[bytes]) -> bytes:
    """Draw pieces of samples and of anything, one after another."""
    pieces = st.tuples(st.sampled_from(samples), st.integers(0, 400), st.integers(0, 400)).map(
        lambda cut: cut[0][min(cut[1:]) : max(cut[1:])]
    )
    odd = st.sampled_from([json.dumps(value).encode() for value in ODD_VALUES]) | st.binary(max_size=8)
    return b"".join(draw(st.lists(pieces | odd, max_size=6)))
