import json
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from yarl import URL

from lifesign.domain.observation.probe_memory import (
    MAX_IN_ROW,
    MAX_MOMENT_S,
    ProbeMemory,
)
from lifesign.domain.observation.results import MAX_ETAG_CHARS, MAX_URL_CHARS, ResultClass

MOMENTS = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))
URLS = st.one_of(st.none(), st.text(max_size=MAX_URL_CHARS))
MEMORIES = st.builds(
    ProbeMemory,
    probed_at_s=MOMENTS,
    result=st.one_of(st.none(), st.sampled_from(ResultClass)),
    failures_in_row=st.integers(0, MAX_IN_ROW),
    confirm_at_s=MOMENTS,
    not_before_s=MOMENTS,
    slowdowns=st.integers(0, MAX_IN_ROW),
    robots_read_at_s=MOMENTS,
    is_disallowed_by_robots=st.booleans(),
    disallowed_in_row=st.integers(0, MAX_IN_ROW),
    is_opted_out=st.booleans(),
    card_read_at_s=MOMENTS,
    card_url=URLS,
    card_etag=st.one_of(st.none(), st.text(max_size=MAX_ETAG_CHARS)),
    card_digest=st.one_of(st.none(), st.from_regex("^[0-9a-f]{64}$", fullmatch=True)),
    interface_url=URLS,
    interface_binding=st.one_of(st.none(), st.text(max_size=64)),
    protocol_version=st.one_of(st.none(), st.text(max_size=64)),
    health_url=URLS,
)


@given(MEMORIES)
def test_probe_memory_is_unchanged_after_json(memory: ProbeMemory) -> None:
    text = memory.to_json()
    assert ProbeMemory.from_json(text) == memory
    assert ProbeMemory.from_json(text.encode()) == memory


def test_memory_of_an_unprobed_target_is_empty() -> None:
    assert ProbeMemory().to_json() == "{}"
    assert ProbeMemory.from_json("{}") == ProbeMemory()


def test_unknown_members_are_not_stored() -> None:
    memory = ProbeMemory(probed_at_s=1_800_000_000.25, result=ResultClass.REFUSED, failures_in_row=3)
    assert json.loads(memory.to_json()) == {
        "probed_at_s": 1_800_000_000.25,
        "result": "refused",
        "failures_in_row": 3,
    }
    # Most of a directory is like that, and there are a million of them.
    assert len(memory.to_json()) < 80


def test_the_longest_memory_of_real_urls_fits() -> None:
    url = f"https://agent.example/{'a' * (MAX_URL_CHARS - 22)}"
    moment_s = 1_800_000_000.123456
    longest = ProbeMemory(
        probed_at_s=moment_s,
        result=ResultClass.REDIRECT_REFUSED,
        failures_in_row=MAX_IN_ROW,
        confirm_at_s=moment_s,
        not_before_s=moment_s,
        slowdowns=MAX_IN_ROW,
        robots_read_at_s=moment_s,
        is_disallowed_by_robots=True,
        disallowed_in_row=MAX_IN_ROW,
        is_opted_out=True,
        card_read_at_s=moment_s,
        card_url=url,
        card_etag=f'"{"e" * (MAX_ETAG_CHARS - 2)}"',
        card_digest="f" * 64,
        interface_url=url,
        interface_binding="b" * 64,
        protocol_version="v" * 64,
        health_url=url,
    )
    assert len(longest.to_json().encode()) <= 16_384


@pytest.mark.parametrize(
    "fields",
    [
        {"unknown": 1},
        {"probed_at_s": "1800000000"},
        {"probed_at_s": nan},
        {"not_before_s": inf},
        {"result": "fine"},
        {"failures_in_row": -1},
        {"failures_in_row": MAX_IN_ROW + 1},
        {"failures_in_row": 1.5},
        {"slowdowns": True},
        {"is_disallowed_by_robots": 1},
        {"disallowed_in_row": MAX_IN_ROW + 1},
        {"card_url": "a" * (MAX_URL_CHARS + 1)},
        {"card_etag": "e" * (MAX_ETAG_CHARS + 1)},
        {"card_digest": "F" * 64},
        {"card_digest": "f" * 63},
        {"interface_binding": "b" * 65},
    ],
    ids=str,
)
def test_impossible_memory_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(fields))):
        ProbeMemory.from_json(json.dumps(fields))


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '{"probed_at_s":1}x'])
def test_invalid_memory_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        ProbeMemory.from_json(text)


@pytest.mark.parametrize("member", ["probed_at_s", "not_before_s", "robots_read_at_s", "alive_at_s"])
@pytest.mark.parametrize("at_s", [-1.0, -1.7e308, 2 * MAX_MOMENT_S, 1e20, 1.7e308])
def test_impossible_time_in_a_memory_is_dropped_without_the_rest(member: str, at_s: float) -> None:
    text = json.dumps({"failures_in_row": 3, member: at_s})
    assert ProbeMemory.from_json(text) == ProbeMemory(failures_in_row=3)


@pytest.mark.parametrize("member", ["card_url", "card_redirect", "interface_url", "health_url"])
@pytest.mark.parametrize(
    "url",
    [
        "", "::::", "//", "http:///x", "http://[::1", "http://[::1]@", "http://h:0/", "http://h:99999999/",
        "http://x/\r\nHost: y", "http://a b/", "http://a\0b/", "https://\xe9.example/", "file:///etc/passwd",
    ],
    ids=ascii,
)  # fmt: skip
def test_invalid_url_in_a_memory_is_dropped_without_the_rest(member: str, url: str) -> None:
    text = json.dumps({"failures_in_row": 3, member: url})
    assert ProbeMemory.from_json(text) == ProbeMemory(failures_in_row=3)


_PARTS = st.sampled_from(
    [
        "http",
        "https",
        "://",
        ":",
        "/",
        "[",
        "]",
        "@",
        "?",
        "#",
        "%",
        "a",
        "::1",
        "0",
        "80",
        "..",
        "-",
        "\\",
        "%25",
    ]
)


@given(st.one_of(st.text(max_size=30), st.lists(_PARTS, max_size=8).map("".join)))
@pytest.mark.parametrize("scheme", ["", "http://", "https://"])
def test_each_stored_url_can_be_sent_in_a_request(scheme: str, rest: str) -> None:
    kept = ProbeMemory(card_url=scheme + rest).card_url
    if kept is not None:
        url = URL(kept, encoded=True)
        assert url.origin().scheme in {"http", "https"}
        assert f"{url.host_port_subcomponent} {url.raw_path_qs}".encode("ascii").isascii()
