import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.net.allowed_addresses import read_networks
from lifesign.domain.targets.target import StatedKind, TargetKind, read_target
from lifesign.prober.directories import target_collection as module
from lifesign.prober.directories.format_parser import (
    MAX_NAME_CHARS,
    NESTED_SHARE,
    Entry,
    Kind,
    Listed,
    Skipped,
)
from lifesign.prober.directories.target_collection import (
    MAX_EXAMPLE_CHARS,
    MAX_EXAMPLES,
    MAX_LISTED_CHARS,
    PROBED_KINDS,
    Gathered,
    SkippedEntries,
    TooManyEntries,
    kinds_of,
    target_kind,
)

BASE = "https://directory.example/catalogs/all.json"


def gather(*entries: Entry | str, base: str = "", kinds: frozenset[Kind] = PROBED_KINDS) -> Gathered:
    found = Gathered(kinds)
    found.add([Listed(entry) if isinstance(entry, str) else entry for entry in entries], base)
    return found


def urls(found: Gathered) -> list[str]:
    return [entry.url for entry in found.entries]


def reasons(found: Gathered) -> dict[str, int]:
    return {reason: left_out.count for reason, left_out in found.left_out.items()}


def test_equivalent_urls_are_one_target_in_listing_order() -> None:
    found = gather("b.example", "https://A.example", "https://b.example:443/#x", "https://a.example/")
    assert urls(found) == ["https://b.example/", "https://a.example/"]
    assert (found.items, found.duplicates) == (4, 2)


def test_the_first_listing_of_a_url_names_it() -> None:
    found = gather(Listed("a.example", "One", Kind.A2A_CARD), Listed("https://a.example/", "Two"))
    assert found.entries == (Listed("https://a.example/", "One", Kind.A2A_CARD),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("https://{tenant}.example/mcp", "template_url"),
        ("https://a.example/{id}", "template_url"),
        ("https://mcp.example/sse?key=<YOUR_TOKEN>", "template_url"),
        ("https://${HOST}/a2a", "template_url"),
        ("{{base}}/a2a", "template_url"),
        ("ftp://a.example/", "foreign_scheme"),
        ("stdio://server", "foreign_scheme"),
        ("wss://a.example/", "foreign_scheme"),
        ("did:web:a.example", "foreign_scheme"),
        ("urn:air:a.example:agent", "foreign_scheme"),
        ("mailto:ops@a.example", "foreign_scheme"),
        ("data:text/html,x", "foreign_scheme"),
        ("javascript:alert(1)", "foreign_scheme"),
        ("", "invalid_url"),
        ("agent", "invalid_url"),
        ("not a url", "invalid_url"),
        ("a.example:99999", "no_port"),
        ("http://a.example:0/", "no_port"),
        ("ops@a.example", "invalid_url"),
        ("https://", "invalid_url"),
        ("http://user:secret@a.example/", "with_credentials"),
        ("https://token@a.example:99999/", "with_credentials"),
        ("/relative", "invalid_url"),
        ("https://a.example/\u202e", "invalid_url"),
        (f"https://a.example/{'x' * 3_000}", "invalid_url"),
    ],
)
def test_invalid_entries_are_reported_by_name(text: str, reason: str) -> None:
    found = gather(text, "https://b.example/")
    assert urls(found) == ["https://b.example/"]
    assert reasons(found) == {reason: 1}


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("/a2a", "https://directory.example/a2a"),
        ("./one.json", "https://directory.example/catalogs/one.json"),
        ("../one.json", "https://directory.example/one.json"),
        ("?id=1", "https://directory.example/catalogs/all.json?id=1"),
        ("//other.example/x", "https://other.example/x"),
        ("a.example", "https://a.example/"),
    ],
)
def test_relative_url_is_resolved_against_its_document(text: str, url: str) -> None:
    assert urls(gather(text, base=BASE)) == [url]


@pytest.mark.parametrize("text", ["//[", "/\x00", "//{x}/"])
def test_relative_url_may_be_invalid(text: str) -> None:
    assert urls(gather(text, base=BASE)) == []


def test_mcp_servers_are_a2a_targets_only_on_request() -> None:
    server = Listed("https://a.example/mcp", "one", Kind.MCP)
    assert reasons(gather(server)) == {"not_a2a": 1}
    assert gather(server, kinds=frozenset(Kind)).entries == (server,)


@pytest.mark.parametrize(
    ("protocols", "wanted"),
    [
        ([TargetKind.A2A], {"a2a_card", "unknown"}),
        ([TargetKind.MCP], {"mcp", "unknown"}),
        ([TargetKind.MCP, TargetKind.A2A], {"a2a_card", "unknown", "mcp"}),
    ],
)
def test_protocols_choose_the_kinds_of_targets(protocols: list[TargetKind], wanted: set[str]) -> None:
    listed = [Listed(f"https://{n}.example/", None, kind) for n, kind in enumerate((Kind.A2A_CARD, Kind.MCP))]
    found = gather(*listed, "https://c.example/", kinds=kinds_of(protocols))
    assert {entry.kind.value for entry in found.entries} == wanted
    assert sum(one.count for one in found.left_out.values()) == 3 - len(wanted)


def test_agent_is_no_mcp_server() -> None:
    agent = Listed("https://a.example/card.json", "one", Kind.A2A_CARD)
    assert reasons(gather(agent, kinds=kinds_of([TargetKind.MCP]))) == {"not_mcp": 1}


@pytest.mark.parametrize("is_mcp_first", [False, True])
def test_entries_of_different_kinds_for_one_url_are_disputed(*, is_mcp_first: bool) -> None:
    url = "https://a.example/"
    entries = [Listed(url, "one", Kind.A2A_CARD), Listed(url, "two", Kind.MCP)]
    both = gather(*entries[:: -1 if is_mcp_first else 1], kinds=kinds_of(list(TargetKind)))
    assert ([entry.kind for entry in both.entries], both.duplicates) == ([Kind.DISPUTED], 1)
    assert both.digest() != gather(entries[0], kinds=kinds_of(list(TargetKind))).digest()
    one = gather(Listed(url), Listed(url, "two", Kind.MCP), kinds=kinds_of([TargetKind.MCP]))
    assert [entry.kind for entry in one.entries] == [Kind.UNKNOWN]


@pytest.mark.parametrize(
    ("kind", "wanted", "expected"),
    [
        (Kind.MCP, list(TargetKind), StatedKind.MCP),
        (Kind.MCP_CARD, [TargetKind.MCP], StatedKind.MCP),
        (Kind.A2A_ENDPOINT, list(TargetKind), StatedKind.A2A),
        (Kind.DISPUTED, list(TargetKind), StatedKind.DISPUTED),
        (Kind.UNKNOWN, list(TargetKind), None),
        (Kind.UNKNOWN, [TargetKind.A2A], None),
        (Kind.UNKNOWN, [TargetKind.MCP], StatedKind.MCP),
    ],
)
def test_target_kind_comes_from_its_entry_or_from_the_list_settings(
    kind: Kind, wanted: list[TargetKind], expected: StatedKind | None
) -> None:
    assert target_kind(kind, wanted) is expected


def test_skipped_entries_are_counted_with_examples() -> None:
    found = gather(*(Skipped(f"entry {n}" if n else "", "no_url") for n in range(MAX_EXAMPLES + 3)))
    examples = tuple(f"entry {n}" for n in range(1, MAX_EXAMPLES + 1))
    assert found.left_out == {"no_url": SkippedEntries(MAX_EXAMPLES + 3, examples)}


def test_examples_and_names_are_short_and_printable() -> None:
    evil = "\x1b[2J\u202e" + "x" * 5_000
    found = gather(Skipped(evil, "unreadable"), Listed("a.example", evil))
    (example,) = found.left_out["unreadable"].examples
    name = found.entries[0].name
    assert name is not None
    assert (len(example), len(name)) == (MAX_EXAMPLE_CHARS, MAX_NAME_CHARS)
    assert example.isprintable()
    assert name.isprintable()


def test_examples_show_no_password() -> None:
    found = gather("https://u:s3@a.example", "https://t0ken@b.example", Skipped("c://u:p@c", "no_url"))
    assert found.left_out == {
        "with_credentials": SkippedEntries(2, ("https://...@a.example", "https://...@b.example")),
        "no_url": SkippedEntries(1, ("c://...@c",)),
    }
    (left_out,) = gather(f"https://u:{'s3' * 2_000}@a.example/b").left_out.values()
    assert left_out.examples == ("https://...@a.example/b",)


@pytest.mark.parametrize("url", ["http://localhost:5008/sse", "http://127.0.0.1/", "https://[::1]:80/"])
def test_localhost_entry_is_a_target_with_a_finding(url: str) -> None:
    found = gather(url, "https://localhost.example/", "https://a.example/localhost")
    assert len(found.entries) == 3
    (finding,) = found.findings()
    assert finding.name == "entries_on_localhost"
    assert finding.message.startswith("1 on this machine itself: probed only if")
    assert "--allow-network" in finding.message
    assert finding.message.endswith(f"127.0.0.0/8 or ::1: {url}")


@pytest.mark.parametrize(
    ("networks", "message"),
    [
        (["127.0.0.0/8"], "https://[::1]/"),
        (["::1"], "http://127.0.0.1/"),
        (["10.0.0.0/8"], "http://localhost:5008/, http://127.0.0.1/, https://[::1]/"),
        (["127.0.0.0/8", "::1"], None),
    ],
)
def test_allowed_loopback_target_has_no_finding(networks: list[str], message: str | None) -> None:
    found = Gathered(networks=read_networks(networks))
    found.add(Listed(url) for url in ("http://localhost:5008/", "http://127.0.0.1/", "https://[::1]/"))
    assert [finding.message.partition(" or ::1: ")[2] for finding in found.findings()] == [message] * bool(
        message
    )


@pytest.mark.parametrize("networks", [(), ("127.0.0.0/8", "::1")])
def test_no_network_setting_opens_an_unspecified_address(networks: tuple[str, ...]) -> None:
    found = Gathered(networks=read_networks(networks))
    found.add(Listed(url) for url in ("http://0.0.0.0:1/", "https://0.0.0.0/", "https://0.0.0.0.example/"))
    (finding,) = found.findings()
    assert finding.name == "entries_at_no_address"
    assert finding.message.endswith("never probed: http://0.0.0.0:1/, https://0.0.0.0/")


@pytest.mark.parametrize(
    ("networks", "is_reported"), [((), True), (("127.0.0.0/8",), True), (("10.0.0.0/8",), False)]
)
def test_single_label_host_is_a_target_with_a_finding_unless_its_network_is_allowed(
    networks: tuple[str, ...], *, is_reported: bool
) -> None:
    found = Gathered(networks=read_networks(networks))
    found.add(
        map(
            Listed,
            ("javascript:1", "https://a.example/", "https://localhost.example", "http://[2001:db8::1]/"),
        )
    )
    assert len(found.entries) == 4
    findings = found.findings()
    assert [finding.name for finding in findings] == ["entries_at_one_word"] * is_reported
    assert all(finding.message.endswith(": https://javascript:1/") for finding in findings)


def test_directory_without_targets_is_reported() -> None:
    assert [finding.name for finding in gather("x").findings()] == ["nothing_to_probe"]
    assert gather().findings() == []


def test_targets_above_the_limit_are_refused_and_duplicates_are_not_counted() -> None:
    found = Gathered(max_entries=2)
    found.add([Listed("a.example"), Listed("b.example"), Listed("a.example")])
    with pytest.raises(TooManyEntries, match="more than 2 targets"):
        found.add([Listed("c.example")])


def test_nested_catalog_may_use_one_part_of_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 2 * NESTED_SHARE)
    found = gather("a.example", "b.example", "c.example")
    for catalog in range(2):
        found.begin_part(NESTED_SHARE)
        with pytest.raises(TooManyEntries, match="more than 2 targets"):
            found.add(Listed(f"{catalog}-{number}.example") for number in range(9))
    assert len(found.entries) == 7


def test_nested_catalogs_may_not_use_more_than_the_directory() -> None:
    found = Gathered(max_entries=2)
    found.add([Listed("a.example")])
    for most in (1, 0):
        found.begin_part(NESTED_SHARE)
        with pytest.raises(TooManyEntries, match=f"more than {most} target"):
            found.add([Listed("b.example"), Listed("c.example")])


def test_items_and_bytes_of_a_nested_catalog_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ITEMS", 3 * NESTED_SHARE)
    monkeypatch.setattr(module, "MAX_TARGETS_BYTES", 100 * NESTED_SHARE)
    found = gather("a.example")
    for _ in range(2):
        found.begin_part(NESTED_SHARE)
        with pytest.raises(TooManyEntries, match="more than 3 items"):
            found.add([Listed("a.example")] * 4)
    found.begin_part(NESTED_SHARE)
    with pytest.raises(TooManyEntries, match="more than 100 bytes"):
        found.add([Listed("b.example", "x" * 90)])


@pytest.mark.parametrize(("name", "most"), [("abcdef", 4), ("abcd€", 2)], ids=["narrow", "wide"])
def test_urls_and_names_are_bounded_in_bytes(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TARGETS_BYTES", 4 * len("https://a.example/1abcdef"))
    found = Gathered()
    with pytest.raises(TooManyEntries, match="URLs and names"):
        found.add(Listed(f"https://a.example/{number}", name) for number in range(9))
    assert len(found.entries) == most


def test_overlong_text_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    monkeypatch.setattr(module, "read_target", looked_at.append)
    found = gather(
        f"https://a.example/{{x}}{'a' * MAX_LISTED_CHARS}", Skipped("x." * MAX_LISTED_CHARS, "no_url")
    )
    assert reasons(found) == {"invalid_url": 1, "no_url": 1}
    assert looked_at == []


def test_number_of_skipped_entries_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ITEMS", 3)
    with pytest.raises(TooManyEntries, match="more than 3 items"):
        gather("x", "y", "z", "x")


def test_digest_does_not_depend_on_order_or_duplicates() -> None:
    one, other = gather("a.example", "b.example"), gather("https://b.example/", "a.example", "a.example")
    assert one.digest() == other.digest()
    assert one.digest() != gather("a.example").digest()
    assert gather(Listed("https://a.example/", None, Kind.A2A_CARD)).digest() != gather("a.example").digest()
    assert gather().digest() != one.digest()
    assert len(one.digest()) == 64


@given(
    st.lists(
        st.one_of(st.text(max_size=20), st.from_regex(r"(https?://)?[a-c]\.example(/x)?", fullmatch=True))
    )
)
def test_each_item_is_counted_as_target_duplicate_or_skipped(texts: list[str]) -> None:
    found = gather(*texts, base=BASE)
    assert found.items == len(texts)
    assert found.items == len(found.entries) + found.duplicates + sum(reasons(found).values())
    assert len(set(urls(found))) == len(found.entries)
    assert all(read_target(url) == url for url in urls(found))
