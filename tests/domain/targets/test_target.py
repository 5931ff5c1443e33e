import re
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

from lifesign.domain.net.allowed_addresses import (
    MAX_URL_CHARACTERS,
    AddressRefused,
    TargetUrl,
    read_networks,
    vet_url,
)
from lifesign.domain.net.international_host import with_ascii_host
from lifesign.domain.observation.results import MAX_URL_CHARS, URL_PATTERN
from lifesign.domain.targets import target
from lifesign.domain.targets.target import (
    HASH_DIGITS,
    SHARDS,
    TARGET_ID_PREFIX,
    has_single_label_host,
    host_of,
    is_on_origin_of,
    is_target_id,
    origin_of,
    phase_of,
    read_target,
    shard_of,
    target_id,
    turn_of,
)

TARGETS = 100_000
URLS = st.one_of(
    st.from_regex(r"(?:(?:[Hh]ttps?|ftp)://)?[A-Za-z0-9.:\[\]@-]{1,30}(?:[/?#][!-~]{0,20})?", fullmatch=True),
    st.from_regex(r"https?://[a-z0-9-]{1,10}\.example\.?(?::[0-9]{0,5})?[/?#]?[!-~]{0,9}", fullmatch=True),
    st.text(max_size=40),
)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("agent.example", "https://agent.example/"),
        ("  https://agent.example\n", "https://agent.example/"),
        ("HTTPS://Agent.EXAMPLE", "https://agent.example/"),
        ("agent.example:8443/a2a", "https://agent.example:8443/a2a"),
        ("https://agent.example.", "https://agent.example/"),
        ("https://agent.example.:443/", "https://agent.example/"),
        ("https://agent.example:0443/", "https://agent.example/"),
        ("https://agent.example:/", "https://agent.example/"),
        ("http://agent.example:80", "http://agent.example/"),
        ("http://agent.example:443", "http://agent.example:443/"),
        ("https://agent.example:80", "https://agent.example:80/"),
        ("http://agent.example:08080", "http://agent.example:8080/"),
        ("https://agent.example#top", "https://agent.example/"),
        ("https://agent.example/a#top?no=1", "https://agent.example/a"),
        ("https://agent.example?q=1", "https://agent.example/?q=1"),
        ("https://agent.example/A2A/?Key=V", "https://agent.example/A2A/?Key=V"),
        ("agent.example/?next=http://Other.example", "https://agent.example/?next=http://Other.example"),
        ("http://[0:0:0:0:0:0:0:1]:80/", "http://[::1]/"),
        ("http://[2001:DB8::A]:8080", "http://[2001:db8::a]:8080/"),
        ("https://agent.example/a/../b", "https://agent.example/b"),
        ("https://agent.example/a/%2e%2E/b", "https://agent.example/b"),
        ("https://agent.example/./a/.%2e/../b/.", "https://agent.example/b/"),
        ("agent.example/a/b/..", "https://agent.example/a/"),
        ("agent.example/..", "https://agent.example/"),
        ("agent.example/.#/../a", "https://agent.example/"),
        ("https://Agent.example/a/../?q=/../b", "https://agent.example/?q=/../b"),
        ("agent.example/%7Eagent/%41-%c3%a9%2f?q=%7e%3d", "https://agent.example/~agent/A-%C3%A9%2F?q=~%3D"),
        ("agent.example/%2541", "https://agent.example/%2541"),
        ("agent.example/%%34%31", "https://agent.example/%%34%31"),
        ("https://agent.example/?q=/../b", "https://agent.example/?q=/../b"),
        ("https://agent.example/.well-known/a..b/...", "https://agent.example/.well-known/a..b/..."),
        # Two slashes are another path than one (RFC 3986 6.2.2).
        ("https://agent.example//a", "https://agent.example//a"),
        # May be listed; whether it is contacted is decided when it is probed.
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/"),
        ("http://169.254.169.254/latest", "http://169.254.169.254/latest"),
        ("localhost:8000", "https://localhost:8000/"),
    ],
)
def test_equivalent_urls_are_one_target(text: str, url: str) -> None:
    assert read_target(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "https://",
        "https:///path",
        "/relative",
        "//agent.example/",
        "https://{tenant}.example/",
        "https://agent.example/{tenant}/",
        "ftp://agent.example/",
        "stdio://agent",
        "mailto:ops@agent.example",
        "urn:agent:one",
        "https://user:password@agent.example/",
        "https://agent.example:0/",
        "https://agent.example:65536/",
        "https://agent.example:999999999999/",
        "https://agent.example\\@other.example/",
        "https://agent .example/",
        "https://ägent.example/ä",
        "https://0x7f.1/",
        "https://agent.example/\u2028a",
        f"https://agent.example/{'a' * MAX_URL_CHARACTERS}",
    ],
)
def test_invalid_agent_url_is_refused_with_a_reason(text: str) -> None:
    refused = read_target(text)
    assert isinstance(refused, AddressRefused), refused
    assert refused.name == "invalid_url"
    assert refused.reason


def test_a_url_that_grows_too_long_by_its_path_is_refused() -> None:
    start = "https://agent.example?"
    longest = f"{start}{'q' * (MAX_URL_CHARACTERS - len(start))}"
    assert isinstance(read_target(longest), AddressRefused)
    assert (
        read_target(longest[:-1]) == f"https://agent.example/?{'q' * (MAX_URL_CHARACTERS - len(start) - 1)}"
    )


@given(URLS)
@example("https://agent.example.:0443?a/b#c")
@example("agent.example:443")
@example("agent.example/%%34%31")
def test_normalised_target_is_stable_and_has_the_same_destination(text: str) -> None:
    url = read_target(text)
    if isinstance(url, AddressRefused):
        return
    assert read_target(url) == url
    assert len(url) <= min(MAX_URL_CHARACTERS, MAX_URL_CHARS)
    stripped = text.strip()
    spelled = stripped if stripped.lower().startswith(("http://", "https://")) else f"https://{stripped}"
    in_ascii = with_ascii_host(spelled)
    assert isinstance(in_ascii, str)
    everything = vet_url(in_ascii)
    assert vet_url(url) == everything
    # The other reader of URLs that a probe goes through sees the same host.
    assert URL(url).raw_host == host_of(url)


@given(st.one_of(URLS, st.from_regex(r"(?:https?://)?[a-z0-9_.-]{1,12}(?:/[!-~]{0,9})?", fullmatch=True)))
@example(f"https://{'a' * 63}.example")
@example(f"{'a' * 64}.example")
@example("https://agent.example/a#b")
@example("agent.0x1")
@example("a" * 250)
@example(".".join(["a"] * 126))
def test_fast_path_for_plain_urls_agrees_with_the_full_parser(text: str) -> None:
    # The space keeps it off the short way.
    assert read_target(text) == read_target(f" {text}")


@given(URLS)
def test_target_url_is_valid_in_an_observation(text: str) -> None:
    url = read_target(text)
    if not isinstance(url, AddressRefused):
        assert re.fullmatch(URL_PATTERN, url)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://agent.example/a:b/c", "agent.example"),
        ("https://agent.example:8443/?a=[b]", "agent.example"),
        ("http://127.0.0.1:8000/", "127.0.0.1"),
        ("http://[2001:db8::a]:8080/", "2001:db8::a"),
        ("http://[::1]/", "::1"),
    ],
)
def test_host_of_a_target_excludes_port_and_path(url: str, host: str) -> None:
    assert host_of(url) == host


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("https://javascript:1/", True),
        ("http://intranet/agents/a.b", True),
        ("https://agent.example/", False),
        ("http://localhost:8000/", False),
        ("http://10.0.0.1/", False),
        ("http://[::1]:80/", False),
    ],
)
def test_single_label_host_differs_from_names_and_addresses(url: str, *, is_one: bool) -> None:
    assert has_single_label_host(url) is is_one


def test_id_is_short_printable_and_stable() -> None:
    # Databases contain this id: it must not change.
    known = "tgt_745cf503e6a267f168ddb5b970c7b629"
    assert target_id("https://agent.example/") == known
    assert len(known) == len(TARGET_ID_PREFIX) + HASH_DIGITS
    assert target_id("https://agent.example/a") != known


@given(URLS)
def test_ids_of_targets_are_recognised_in_any_case(url: str) -> None:
    assert is_target_id(target_id(url))
    assert is_target_id(target_id(url).upper())


@pytest.mark.parametrize("name", ["tgt_", "tgt_1", "tgt_" + "g" * 32, "tgt_" + "0" * 33, "atgt_" + "0" * 32])
def test_other_names_are_no_targets(name: str) -> None:
    assert not is_target_id(name)


def test_phase_turn_and_shard_are_stable() -> None:
    # Workers of different versions share the work: they must agree.
    assert phase_of("tgt_1") == pytest.approx(0.552143390724698, abs=1e-15)
    assert turn_of("tgt_1") == 1_146_823_210
    assert shard_of("agent.example") == 846


@given(st.text(max_size=50))
def test_phases_turns_and_shards_stay_within_their_ranges(text: str) -> None:
    assert 0 <= phase_of(text) < 1
    assert 0 <= turn_of(text) < 2**32
    assert 0 <= shard_of(text) < SHARDS


def test_phases_are_spread_evenly() -> None:
    phases = sorted(phase_of(target_id(f"https://agent-{number}.example/")) for number in range(TARGETS))
    # Nowhere do more than 1 % of the targets come before or after their time …
    assert max(abs(phase - rank / TARGETS) for rank, phase in enumerate(phases)) < 0.01
    # Each hundredth of the interval is within 20 % of its share: six standard deviations.
    counts = Counter(int(phase * 100) for phase in phases)
    assert len(counts) == 100
    assert max(abs(count - TARGETS / 100) for count in counts.values()) < 0.2 * TARGETS / 100


def test_turns_are_spread_evenly_also_among_targets_of_about_the_same_phase() -> None:
    ids = [f"tgt_{number}" for number in range(TARGETS)]
    together = [subject_id for subject_id in ids if phase_of(subject_id) < 0.1]
    counts = Counter(turn_of(subject_id) % 8 for subject_id in together)
    assert max(abs(count - len(together) / 8) for count in counts.values()) < 0.2 * len(together) / 8


def test_shards_are_filled_evenly() -> None:
    counts = Counter(shard_of(f"agent-{number}.example") for number in range(TARGETS))
    assert len(counts) == SHARDS
    # About 98 per shard; six deviations are 60.
    assert max(counts.values()) < 160


def test_all_targets_of_a_host_lie_in_one_shard() -> None:
    urls = ["https://agent.example/", "http://agent.example:8000/a", "https://agent.example/b?c=d"]
    shards = [shard_of(host_of(url)) for url in urls]
    assert all(one == other for one, other in pairwise(shards))


def test_repeated_host_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    result: list[str] = []

    def judge(url: str) -> TargetUrl | AddressRefused:
        result.append(url)
        return vet_url(url)

    monkeypatch.setattr(target, "vet_url", judge)
    text = "http://192.0.2.1:18303"
    assert {read_target(text) for _ in range(1000)} == {f"{text}/"}
    assert result == [text]


@pytest.mark.parametrize(
    ("place", "is_there"),
    [
        ("https://agent.example/a2a", True),
        ("https://agent.example:443", True),
        ("https://AGENT.example/?x=1", True),
        ("https://agent.example./a2a", True),
        ("https://agent.example.:443/a2a", True),
        ("https://agent.example.:8443/a2a", False),
        ("http://agent.example/a2a", False),
        ("https://agent.example:8443/a2a", False),
        ("https://agent.example.other.example/a2a", False),
        ("https://other.example/https://agent.example/", False),
    ],
)
def test_url_has_the_origin_of_a_target_if_scheme_host_and_port_match(place: str, *, is_there: bool) -> None:
    assert is_on_origin_of(place, "https://agent.example/agents/7") is is_there


@pytest.mark.parametrize(
    "url",
    [
        "https://Agent.Example.:8443/a",
        "HTTPS://agent.example:8443",
        "http://[::1]:80/",
        "http://LOCALHOST.:80/debug?x=1",
        "http://127.0.0.1.:8080/",
    ],
)
def test_origin_of_a_url_is_the_place_to_which_the_prober_connects(url: str) -> None:
    loopback = read_networks(["127.0.0.0/8", "::1"])
    assert vet_url(f"{origin_of(url)}/", loopback) == vet_url(url, loopback)
