import re
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from lifesign.domain.files.validation_messages import expectation
from lifesign.domain.net.allowed_addresses import read_networks
from lifesign.prober.definition.values import (
    FORMS,
    MAX_NAME_CHARS,
    NAME_PATTERN,
    CanaryClass,
    CanaryUrl,
    Contact,
    Format,
    HealthPath,
    Host,
    Name,
    NetworkName,
    PhaseSeconds,
    RegistryUrl,
    ResolverName,
    Switch,
    Target,
    check_canaries,
    drop_duplicates,
    name_from,
    resolver_address,
)


def takes(kind: Any, value: object) -> bool:
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(
    "contact",
    [
        "mailto:ops@agent.example",
        "mailto:first.last+probe@mail.agent.example",
        "https://agent.example",
        "https://agent.example/probe?who=us#contact",
    ],
)
def test_a_contact_is_an_address_or_a_page(contact: str) -> None:
    assert takes(Contact, contact)


@pytest.mark.parametrize(
    "contact",
    [
        "", "ops@agent.example", "http://agent.example", "mailto:", "mailto:ops", "https://", "x",
        "mailto:ops@agent.example\n", "mailto:ops@agent.example\r\nX-Evil: 1", "https://agent.example/\x00",
        "https://agent.example/)", "https://agent.example/(", "https://agent.example/\\", "https://a b",
        "https://ägent.example", "https://agent.example/\u2028", "https://agent.example/" + "x" * 200,
    ],
)  # fmt: skip
def test_contact_with_characters_that_end_the_header_is_refused(contact: str) -> None:
    assert not takes(Contact, contact)


@given(st.text(max_size=12), st.text(max_size=12))
def test_any_accepted_contact_is_one_printable_word(start: str, end: str) -> None:
    for text in (f"mailto:{start}@{end}", f"https://{start}{end}"):
        if takes(Contact, text):
            assert re.fullmatch(r"[!-'*-\[\]-~]+", text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.0.2.1", ("192.0.2.1", 53)),
        ("192.0.2.1:5353", ("192.0.2.1", 5353)),
        ("::1", ("::1", 53)),
        ("[::1]", ("::1", 53)),
        ("[2001:DB8::1]:5353", ("2001:db8::1", 5353)),
        ("", None),
        ("dns.example", None),
        ("dns.example:53", None),
        ("192.0.2.1:", None),
        ("192.0.2.1:0", None),
        ("192.0.2.1:65536", None),
        ("192.0.2.1:+1", None),
        ("192.0.2.1:٥٣", None),
        ("192.0.2", None),
        ("[192.0.2.1]:53", None),
        ("[::1", None),
        ("[::1]53", None),
        ("::1:70000", None),
        ("192.0.2.1:53:53", None),
    ],
)
def test_dns_server_is_an_address_with_an_optional_port(text: str, address: tuple[str, int] | None) -> None:
    assert resolver_address(text) == address


@given(st.text(max_size=20))
def test_any_text_is_a_dns_server_or_is_refused(text: str) -> None:
    resolver_address(text)


@pytest.mark.parametrize(
    ("given_text", "name"),
    [
        ("directory.example", "directory.example"),
        ("Agents-2026_v1.TXT", "agents-2026_v1.txt"),
        ("x" * MAX_NAME_CHARS, "x" * MAX_NAME_CHARS),
    ],
)
def test_directory_name_is_derived_from_host_or_file(given_text: str, name: str) -> None:
    assert name_from(given_text) == name


@pytest.mark.parametrize(
    ("given_text", "beginning"),
    [
        ("2001:db8::1", "2001-db8-1"),
        ("My Agents (2026).CSV", "my-agents-2026-.csv"),
        (".hidden", "hidden"),
        ("…", "directory"),
        ("агенты", "directory"),
        ("größen.txt", "gr-en.txt"),
        ("x" * 300, "x" * (MAX_NAME_CHARS - 9)),
    ],
)
def test_changed_name_is_made_unique_by_a_hash(given_text: str, beginning: str) -> None:
    name = name_from(given_text)
    assert re.fullmatch(re.escape(beginning) + "-[0-9a-f]{8}", name)
    assert name == name_from(given_text)


@given(st.text(max_size=80), st.text(max_size=80))
@example("агенты.txt", "роботы.txt")
@example("a b.txt", "a-b.txt")
@example("", "directory")
def test_files_with_different_names_give_different_directory_names(one: str, other: str) -> None:
    are_alike = normalize("NFC", one.lower()) == normalize("NFC", other.lower())
    assert are_alike or name_from(one) != name_from(other)


def test_directory_name_is_equal_for_composed_and_decomposed_accents() -> None:
    assert name_from("caf\u00e9.txt") == name_from("cafe\u0301.txt")


@given(st.text())
def test_any_derived_name_is_valid(text: str) -> None:
    assert re.fullmatch(NAME_PATTERN, name_from(text))
    assert takes(Name, name_from(text))


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (
            Host,
            [".example.org", "example.org", "127.0.0.1", "::1", "größe.example", ".größe.example"],
            ["", ".", "a b", "*.example", "ä b.example", 1],
        ),
        (ResolverName, ["192.0.2.1", "[2001:db8::1]:53"], ["", "dns.example", "192.0.2.1:0"]),
        (CanaryClass, ["public_ipv4", "public_ipv6", "10.1.0.0/16"], ["loopback", "", "10.1.2.3/16"]),
        (CanaryUrl, ["https://a.example", "http://10.1.2.3"], ["ftp://x", "http://a:b@c", "https://{a}/"]),
        (
            HealthPath,
            ["/", "/ping", "/a/b?c=d", "/a//b", "/x?to=//b/../c", "/...", "/.well-known/x"],
            ["", "ping", "?a", "/a b", "/{x}", "/x#y", "/\\x", "/\n", "/x\n", "/\x00", "/\x7f", "/\u2028"],
        ),
        (RegistryUrl, ["http://127.0.0.1:8440", "https://a.example"], ["a", "ftp://x", "http://a:b@c"]),
        (NetworkName, ["127.0.0.0/8", "fd00::/8", "10.1.2.3"], ["10.0.0.1/8", "0.0.0.0/0", "localhost"]),
        (PhaseSeconds, [0.05, 120, 5], [0, -1, 121, True, "5", float("nan"), float("inf")]),
        (Switch, [True, False], [1, 0, "yes", None]),
        (Target, ["agent.example", "https://a.example/x"], ["ftp://x", "https://a/{b}", "", "a b"]),
    ],
)  # fmt: skip
def test_setting_values_are_accepted_or_refused(kind: Any, good: list[object], bad: list[object]) -> None:
    assert [value for value in good if not takes(kind, value)] == []
    assert [value for value in bad if takes(kind, value)] == []


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("//x", "one slash"),
        ("//", "one slash"),
        ("///x", "one slash"),
        ("/a/../b", r"parts \. and \.\."),
        ("/..", r"parts \. and \.\."),
        ("/./a", r"parts \. and \.\."),
        ("/a/%2e%2E/b", r"parts \. and \.\."),
        ("/a/.?b", r"parts \. and \.\."),
    ],
)
def test_path_with_dot_segments_or_backslashes_is_refused_with_the_reason(path: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        TypeAdapter(HealthPath).validate_python(path)


def test_target_of_a_definition_is_normalised() -> None:
    assert TypeAdapter(Target).validate_python("HTTPS://Agent.Example:443#top") == "https://agent.example/"


def test_duplicates_are_removed_in_order() -> None:
    assert drop_duplicates(("b", "a", "b")) == ("b", "a")


@pytest.mark.parametrize("kind", [Name, Contact, Format, HealthPath, Host])
def test_every_pattern_has_a_description(kind: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python("?")
    assert expectation(caught.value.errors()[0], FORMS) in FORMS.values()


def test_host_is_spelled_in_ascii_with_its_dot() -> None:
    spelled = [TypeAdapter(Host).validate_python(host) for host in ("größe.example", ".größe.example")]
    assert spelled == ["xn--gre-6ka8i.example", ".xn--gre-6ka8i.example"]


ALLOWED = read_networks(["10.1.0.0/16", "fd00::/8"])
PUBLIC = [f"https://c{number}.example/" for number in range(5)]


@pytest.mark.parametrize(
    ("network_class", "urls"),
    [
        ("public_ipv4", PUBLIC),
        ("public_ipv4", [*PUBLIC, "https://93.184.215.14/"]),
        ("10.1.0.0/16", ["http://10.1.2.3/"]),
        ("10.1.0.0/16", ["http://agent.internal/"]),
        ("fd00::/8", ["http://[fd00::1]/"]),
    ],
)
def test_canaries_of_their_class_are_accepted(network_class: str, urls: list[str]) -> None:
    check_canaries(network_class, urls, ALLOWED)


@pytest.mark.parametrize(
    ("network_class", "urls", "fault"),
    [
        ("public_ipv4", PUBLIC[:1] * 5, "too_few_canaries"),
        ("public_ipv4", [*PUBLIC, "http://c9.example/"], "canary_without_tls"),
        ("public_ipv6", [*PUBLIC, "https://93.184.215.14/"], "canary_elsewhere"),
        ("public_ipv4", [*PUBLIC, "https://10.1.2.3/"], "canary_elsewhere"),
        ("10.2.0.0/16", ["http://10.2.0.1/"], "canary_class"),
        ("10.1.0.0/16", [], "too_few_canaries"),
        ("10.1.0.0/16", ["http://10.9.9.9/"], "canary_elsewhere"),
        ("10.1.0.0/16", ["http://[fd00::1]/"], "canary_elsewhere"),
    ],
)
def test_canaries_that_cannot_be_witnesses_are_refused(
    network_class: str, urls: list[str], fault: str
) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        check_canaries(network_class, urls, ALLOWED)
    assert caught.value.type == fault
