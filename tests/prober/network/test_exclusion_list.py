import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from lifesign.domain.targets.target import read_target
from lifesign.errors import InvalidValue
from lifesign.prober.network import exclusion_list
from lifesign.prober.network.exclusion_list import OptOuts, read_opt_outs

LABELS = st.from_regex("[a-z0-9]{1,5}", fullmatch=True)
HOSTS = st.lists(LABELS, min_size=1, max_size=4).map(lambda labels: ".".join([*labels, "example"]))
SEGMENTS = st.lists(st.from_regex("[a-z]{0,3}", fullmatch=True), max_size=4)


def entry(lines: str, url: str) -> str | None:
    return read_opt_outs(lines.splitlines(), "list").entry_for(url)


@pytest.mark.parametrize(
    ("line", "url"),
    [
        ("agent.example", "https://agent.example/"),
        ("agent.example", "http://agent.example:8080/a?b"),
        ("  Agent.EXAMPLE.  # asked on Monday", "https://agent.example/a"),
        ("\ufeffagent.example", "https://agent.example/"),
        (".example.org", "https://example.org/"),
        (".example.org", "https://one.example.org/"),
        ("*.example.org", "https://a.b.example.org:8443/x"),
        ("192.0.2.1", "http://192.0.2.1:8000/"),
        ("[2001:DB8:0::1]", "http://[2001:db8::1]:8000/"),
        ("[2001:db8::1]", "http://[2001:db8::1]/"),
        ("https://agent.example", "https://agent.example/any"),
        ("https://agent.example/", "http://agent.example/any"),
        ("agent.example:8443", "http://agent.example:8443/"),
        ("https://agent.example/agents/one", "https://agent.example/agents/one"),
        ("https://agent.example/agents/one", "https://agent.example/agents/one/"),
        ("https://agent.example/agents/one", "http://agent.example/agents/one/card.json?v=1"),
        ("https://agent.example/agents/one", "https://agent.example/agents/one?v=1"),
        ("agent.example/agents/one/", "https://agent.example/agents/one/two"),
        ("https://agent.example/a?id=1", "https://agent.example/a?id=1"),
    ],
)
def test_listed_host_is_excluded(line: str, url: str) -> None:
    assert read_target(url) == url
    assert entry(line, url) is not None


@pytest.mark.parametrize(
    ("line", "url"),
    [
        ("agent.example", "https://agent.example.org/"),
        ("agent.example", "https://my-agent.example/"),
        ("agent.example", "https://sub.agent.example/"),
        (".example.org", "https://notexample.org/"),
        (".example.org", "https://example.org.evil.example/"),
        ("agent.example:8443", "https://agent.example/"),
        ("https://agent.example", "https://agent.example:8443/"),
        ("https://agent.example/agents/one", "https://agent.example/agents/one-more"),
        ("https://agent.example/agents/one", "https://agent.example/agents/"),
        ("https://agent.example/agents/one", "https://other.example/agents/one"),
        ("https://agent.example/agents/one/", "https://agent.example/agents/one"),
        ("https://agent.example/a?id=1", "https://agent.example/a?id=2"),
        ("https://agent.example/a?id=1", "https://agent.example/a"),
        ("# agent.example", "https://agent.example/"),
        ("", "https://agent.example/"),
    ],
)
def test_similar_host_is_not_excluded(line: str, url: str) -> None:
    assert read_target(url) == url
    assert entry(line, url) is None


def test_exclusion_is_reported_with_its_entry() -> None:
    lines = "one.example\n.two.example\nhttps://three.example/a\n"
    assert entry(lines, "https://one.example/x") == "one.example"
    assert entry(lines, "https://a.b.two.example/x") == ".two.example"
    assert entry(lines, "http://three.example/a/b") == "three.example/a"


@given(HOSTS, SEGMENTS)
def test_urls_in_an_exclusion_list_are_normalised(host: str, segments: list[str]) -> None:
    url = URL(f"https://{host}").joinpath(*[segment for segment in segments if segment])
    assert entry(f"https://{host}", str(url)) is not None
    assert entry(host, str(url)) is not None


@given(HOSTS, HOSTS, SEGMENTS, SEGMENTS)
def test_exclusion_lookup_agrees_with_a_linear_search(
    host: str, other: str, listed: list[str], asked: list[str]
) -> None:
    line_path, path = "/" + "/".join(listed), "/" + "/".join(asked)
    url = f"https://{other}{path}"
    below = path == line_path or path.startswith(line_path if line_path.endswith("/") else f"{line_path}/")
    assert (entry(f"https://{host}{line_path}", url) is not None) is (host == other and below)
    is_in_domain = other == host or other.endswith(f".{host}")
    assert (entry(f".{host}", url) is not None) is is_in_domain
    assert (entry(host, url) is not None) is (host == other)


@pytest.mark.parametrize(
    "line",
    [
        "ftp://agent.example/",
        "https://{tenant}.example/",
        "two words.example",
        ".example.org/path",
        "*.example.org:8443",
        "*",
        ".",
        "*agent.example",
        "192.0.2.0/24x y",
        "https://user@agent.example/",
        "ops@agent.example",
    ],
)
def test_unreadable_line_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(InvalidValue, match=r"^no\.txt, line 3: expected a host, ") as refused:
        read_opt_outs(["agent.example", "# fine", line], "no.txt")
    assert refused.value.given == line


def test_a_list_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exclusion_list, "MAX_OPT_OUTS", 3)
    assert len(read_opt_outs(["a.example", "", "#"], "no.txt")) == 1
    with pytest.raises(InvalidValue, match=r"no\.txt: expected 3 lines or fewer"):
        read_opt_outs(["a.example"] * 4, "no.txt")


def test_refused_line_is_quoted_shortened() -> None:
    with pytest.raises(InvalidValue) as refused:
        read_opt_outs(["x" * 10_000], "no.txt")
    assert len(str(refused.value)) < 300


def test_two_exclusion_lists_can_be_combined() -> None:
    one = read_opt_outs(["a.example", "https://c.example/one"], "one")
    other = read_opt_outs([".b.example", "https://c.example/two", "https://d.example/"], "other")
    both = one | other
    assert len(both) == 5
    for url in (
        "https://a.example/",
        "https://x.b.example/",
        "https://c.example/one",
        "https://c.example/two",
    ):
        assert both.entry_for(url) is not None
    assert one.entry_for("https://c.example/two") is None


def test_empty_exclusion_list_excludes_no_target() -> None:
    assert len(OptOuts()) == 0
    assert OptOuts().entry_for("https://agent.example/") is None


def test_lookup_in_a_long_list_is_fast() -> None:
    lines = [
        *(f"agent-{number}.example" for number in range(40_000)),
        *(f".domain-{number}.example" for number in range(30_000)),
        *(f"https://shared.example/agents/{number}" for number in range(30_000)),
    ]
    listed = read_opt_outs(lines, "list")
    assert len(listed) == 100_000
    # Walking 100,000 lines 20,000 times would take minutes.
    found = [
        url
        for number in range(20_000)
        if listed.entry_for(url := f"https://shared.example/agents/{number + 20_000}/card") is not None
    ]
    assert len(found) == 10_000
