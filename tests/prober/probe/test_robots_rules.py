from itertools import product
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lifesign.prober.definition.models import PRODUCT
from lifesign.prober.probe.robots_rules import (
    MAX_PATH_CHARS,
    MAX_ROBOTS_BYTES,
    MAX_RULES,
    MAX_SEARCHED_CHARS,
    ROBOTS_PATH,
    RobotsRules,
    keeps_out,
    may_fetch,
    read_robots,
)

CARD = "/.well-known/agent-card.json"
OLD_CARD = "/.well-known/agent.json"
FOR_US = f"User-agent: {PRODUCT}\n"
PATHS = st.text(alphabet="/ab*$%?=é.", max_size=12).map(lambda rest: f"/{rest}")


def rules(text: str | bytes) -> RobotsRules:
    robots = read_robots(200, text.encode() if isinstance(text, str) else text)
    assert robots is not None
    return robots


def may(text: str | bytes, path: str = CARD) -> bool:
    return may_fetch(rules(text), path)


# Matching user agents


@pytest.mark.parametrize(
    "text",
    [
        f"User-agent: {PRODUCT}\nDisallow: /",
        f"User-Agent: {PRODUCT.upper()}\r\nDISALLOW: /\r\n",
        f"user-agent:{PRODUCT}\rdisallow:/",
        f"  User-agent : {PRODUCT}  # that one\n  Disallow : / # all of it",
        f"User-agent: {PRODUCT}/0.1\nDisallow: /",
        f"\ufeffUser-agent: {PRODUCT}\nDisallow: /",
        f"User-agent: other\nUser-agent: {PRODUCT}\nUser-agent: another\nDisallow: /",
        f"User-agent: {PRODUCT}\n\n\nDisallow: /",
        f"User-agent: {PRODUCT}\nCrawl-delay: 10\nSitemap: https://agent.example/map\nDisallow: /",
        f"User-agent: {PRODUCT}\nwhat is this?\n<html>\nDisallow: /",
        f"User-agent: *\nAllow: /\nUser-agent: {PRODUCT}\nDisallow: /",
        f"User-agent: {PRODUCT}\nDisallow: /\nUser-agent: *\nAllow: /",
        # Groups of one name are one group.
        f"{FOR_US}Disallow: /a\nUser-agent: other\nAllow: /\n{FOR_US}Disallow: /.well-known",
        "User-agent: *\nDisallow: /",
        "User-agent: * \nDisallow: /",
        "User-agent: other\nAllow: /\nUser-agent: *\nDisallow: /",
        "User-agent: lifesign\nAllow: /\nUser-agent: *\nDisallow: /",
    ],
)
def test_robots_txt_for_us_or_for_all_agents_is_followed(text: str) -> None:
    assert not may(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00\xff",
        "<!doctype html><title>Not found</title>",
        "Disallow: /",
        "User-agent:\nDisallow: /",
        "User-agent: other\nDisallow: /",
        # A part of our name is another name, and so is a longer one.
        "User-agent: lifesign\nDisallow: /",
        "User-agent: prober\nDisallow: /",
        f"User-agent: {PRODUCT}-two\nDisallow: /",
        f"User-agent: my {PRODUCT}\nDisallow: /",
        f"User-agent: 0{PRODUCT}\nDisallow: /",
        # A group of its own replaces the rules for all.
        f"User-agent: *\nDisallow: /\n{FOR_US}Disallow: /private",
        f"{FOR_US}Disallow:\n\nUser-agent: *\nDisallow: /",
        f"{FOR_US}\n",
        f"User-agent: {PRODUCT}\nDisallow:",
        f"User-agent: {PRODUCT}\nDisallow: # nothing",
        f"# User-agent: {PRODUCT}\n# Disallow: /",
        f"User-agent: {PRODUCT}\nNoindex: /",
        f"X-User-agent: {PRODUCT}\nDisallow: /",
    ],
)
def test_rules_for_other_agents_do_not_apply_to_us(text: str) -> None:
    assert may(text)


def test_group_without_rules_still_applies_to_its_name() -> None:
    assert may(f"User-agent: *\nDisallow: /\nUser-agent: {PRODUCT}\nSitemap: /map")


# Matching patterns


@pytest.mark.parametrize(
    ("pattern", "path", "is_matched"),
    [
        ("/", "/", True),
        ("/", "/any?thing=1", True),
        ("/fish", "/fish", True),
        ("/fish", "/fish/salmon.html", True),
        ("/fish", "/fishheads", True),
        ("/fish", "/Fish.asp", False),
        ("/fish", "/catfish", False),
        ("/fish/", "/fish", False),
        ("/fish*", "/fishheads/yummy.html", True),
        ("/*.php", "/filename.php?parameters", True),
        ("/*.php", "/folder/any.php.file.html", True),
        ("/*.php", "/", False),
        ("/*.php$", "/folder/filename.php", True),
        ("/*.php$", "/filename.php?parameters", False),
        ("/*.php$", "/filename.php/", False),
        ("/fish*.php", "/fishheads/catfish.php?parameters", True),
        ("/fish*.php", "/Fish.PHP", False),
        ("/$", "/", True),
        ("/$", "/a", False),
        ("*", "/a", True),
        ("*$", "/a", True),
        ("/a*$", "/ab", True),
        ("/a**b", "/a1b", True),
        ("/*a*b$", "/ab", True),
        ("/*ab*ab$", "/ab", False),
        ("/*ab*ab$", "/abab", True),
        ("/a$b", "/a$b", True),
        ("/a$b", "/a", False),
        ("/a%2A", "/a*", True),
        ("/a%2A", "/ab", False),
        ("/a%24", "/a$", True),
        ("fish", "/fish", False),
        # One octet may be written in several ways; an encoded slash is none.
        ("/%7Eagent", "/~agent", True),
        ("/~agent", "/%7eagent", True),
        ("/ツ", "/%E3%83%84", True),
        ("/%e3%83%84", "/ツ", True),
        ("/a%2Fb", "/a%2fb", True),
        ("/a%2Fb", "/a/b", False),
        ("/a/b", "/a%2Fb", False),
        ("/a%3Cb", "/a%3cb", True),
        ("/100%", "/100%", True),
        ("/?q=", "/?q=1", True),
    ],
)
def test_pattern_matches_by_rfc_9309(pattern: str, path: str, *, is_matched: bool) -> None:
    assert may(f"{FOR_US}Disallow: {pattern}", path) is not is_matched


def test_non_utf_8_bytes_of_a_path_match_themselves() -> None:
    assert not may(FOR_US.encode() + b"Disallow: /a\xff", "/a%FF")
    assert may(FOR_US.encode() + b"Disallow: /a\xff", "/a%FE")


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("lines", "path", "is_allowed"),
    [
        (["Allow: /p", "Disallow: /"], "/page", True),
        (["Allow: /folder", "Disallow: /folder"], "/folder/page", True),
        (["Allow: /page", "Disallow: /*.htm"], "/page.htm", False),
        (["Allow: /page", "Disallow: /*.ph"], "/page.php5", True),
        (["Allow: /$", "Disallow: /"], "/", True),
        (["Allow: /$", "Disallow: /"], "/page.htm", False),
        (["Disallow: /", "Allow: /.well-known/agent-card.json"], CARD, True),
        (["Disallow: /", "Allow: /.well-known/agent-card.json"], OLD_CARD, False),
    ],
)
def test_longest_matching_pattern_wins_in_any_order(
    lines: list[str], path: str, *, is_allowed: bool, turned: bool
) -> None:
    text = FOR_US + "\n".join(reversed(lines) if turned else lines)
    assert may(text, path) is is_allowed


def slow_match(pattern: str, path: str) -> bool:
    """Match by trying everything, written down a second time; for patterns that are in normal spelling."""
    if pattern == "$":
        return not path
    if not pattern:
        return True
    if pattern[0] == "*":
        return any(slow_match(pattern[1:], path[at:]) for at in range(len(path) + 1))
    return bool(path) and pattern[0] == path[0] and slow_match(pattern[1:], path[1:])


@given(
    st.text(alphabet="/ab*", max_size=7).map(lambda rest: f"/{rest}"),
    st.sampled_from(["", "$"]),
    st.text(alphabet="/ab", max_size=8).map(lambda rest: f"/{rest}"),
)
@example("/*a*a*a", "$", "/aaaa")
def test_wildcard_matching_agrees_with_exhaustive_search(pattern: str, end: str, path: str) -> None:
    matched = slow_match(pattern + end, path)
    assert may(f"{FOR_US}Disallow: {pattern}{end}", path) is not matched


@given(PATHS)
def test_disallowed_path_matches_in_each_encoding(path: str) -> None:
    pattern = quote(path, safe="/%?=.")
    assert not may(f"{FOR_US}Disallow: {pattern}$", path)
    assert not may(f"{FOR_US}Disallow: {pattern}", quote(path, safe="/%?=."))


def test_robots_txt_itself_is_always_allowed() -> None:
    assert may(f"{FOR_US}Disallow: /", ROBOTS_PATH)
    assert not may(f"{FOR_US}Disallow: /", f"{ROBOTS_PATH}x")


def test_target_is_not_probed_if_a_required_path_is_disallowed() -> None:
    robots = rules(f"{FOR_US}Disallow: {OLD_CARD}")
    assert keeps_out(robots, [CARD, OLD_CARD])
    assert not keeps_out(robots, [CARD])
    assert not keeps_out(robots, [])


# Answers


def test_robots_txt_without_rules_allows_all() -> None:
    body = f"{FOR_US}Disallow: /".encode()
    for status in (301, 302, 400, 401, 403, 404, 410, 451):
        assert read_robots(status, body) == RobotsRules()


def test_failed_robots_txt_request_gives_no_rules() -> None:
    for status, body in product(
        (None, 100, 429, 500, 502, 503, 599, 600), (b"", b"User-agent: *\nDisallow: /")
    ):
        assert read_robots(status, body) is None


def test_any_success_is_read() -> None:
    robots = read_robots(203, f"{FOR_US}Disallow: /".encode())
    assert robots is not None
    assert not may_fetch(robots, CARD)


# Hostile files


@given(st.binary(max_size=300), st.text(max_size=50))
def test_any_robots_txt_and_path_are_matched_without_an_exception(body: bytes, path: str) -> None:
    robots = rules(body)
    assert may_fetch(robots, path) in {True, False}
    mixed = rules(FOR_US.encode() + b"Disallow: " + body)
    assert may_fetch(mixed, path) in {True, False}


def test_only_the_first_half_megabyte_counts() -> None:
    padding = "#" * (MAX_ROBOTS_BYTES - 1) + "\n"
    assert may(f"{padding}{FOR_US}Disallow: /")
    text = f"{FOR_US}Disallow: /\n"
    assert not may("#" * (MAX_ROBOTS_BYTES - len(text) - 1) + "\n" + text)


def test_truncated_line_is_ignored() -> None:
    body = f"{FOR_US}Disallow: /private\nDisallow: /".encode()
    robots = read_robots(200, body, is_part=True)
    assert robots is not None
    assert may_fetch(robots, CARD)
    assert not may_fetch(robots, "/private")
    assert read_robots(200, b"User-agent: *", is_part=True) == RobotsRules()


@pytest.mark.parametrize(
    "line",
    [
        "user-agent: x\n",
        "allow:\n",
        f"user-agent:{PRODUCT}\n",
        "disallow:/*a*a*a*a$\n",
        " ",
        "\r",
        "*",
        "%41",
    ],
)
def test_hostile_robots_txt_is_parsed_in_bounded_time(line: str) -> None:
    text = f"{FOR_US}Disallow: /p*{line * (MAX_ROBOTS_BYTES // len(line) - 10)}"
    robots = rules(text)
    assert isinstance(may_fetch(robots, "/" + "a" * MAX_PATH_CHARS), bool)


def test_a_group_of_many_names_is_read_as_fast_as_many_groups() -> None:
    names = "".join(f"user-agent: agent-{chr(97 + n % 26)}{'x' * (n % 7)}\n" for n in range(20_000))
    assert not may(f"{names}{FOR_US}Disallow: /")


def test_number_of_rules_is_bounded() -> None:
    text = FOR_US + "".join(f"Disallow: /{number}$\n" for number in range(MAX_RULES + 1))
    robots = rules(text)
    assert len(robots.rules) == MAX_RULES
    assert not may_fetch(robots, f"/{MAX_RULES - 1}")
    assert may_fetch(robots, f"/{MAX_RULES}")


def test_pattern_longer_than_any_path_is_not_kept() -> None:
    robots = rules(f"{FOR_US}Disallow: /{'a' * MAX_PATH_CHARS}\nDisallow: /*{'é' * MAX_PATH_CHARS}\n")
    assert robots == RobotsRules()
    assert not may(f"{FOR_US}Disallow: /{'a' * (MAX_PATH_CHARS - 1)}", f"/{'a' * MAX_PATH_CHARS}")


def test_wildcards_are_bounded_and_plain_patterns_are_not() -> None:
    searched = "".join(f"Disallow: /*{'a' * 90}{number:05}$\n" for number in range(3_000))
    robots = rules(f"{FOR_US}{searched}Disallow: /last/of/all\n")
    pieces = [piece for rule in robots.rules for piece in rule.pieces[1:]]
    assert MAX_SEARCHED_CHARS - 100 < sum(map(len, pieces)) <= MAX_SEARCHED_CHARS
    assert not may_fetch(robots, f"/{'a' * 90}00000")
    assert may_fetch(robots, f"/{'a' * 90}02999")
    assert not may_fetch(robots, "/last/of/all")


def test_a_path_of_any_length_is_matched_by_its_beginning() -> None:
    path = f"/a{'b' * MAX_PATH_CHARS}c"
    assert not may(f"{FOR_US}Disallow: /a", path)
    assert may(f"{FOR_US}Disallow: /*c", path)
