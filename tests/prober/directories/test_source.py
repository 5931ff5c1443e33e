from pathlib import Path

import pytest

from lifesign.errors import InvalidValue
from lifesign.prober.directories.format_choice import BUILT_IN
from lifesign.prober.directories.format_parser import Kind
from lifesign.prober.directories.source import ListSource

ORIGIN = "https://directory.example"


@pytest.mark.parametrize(
    "url", ["directory.example", ORIGIN, f"{ORIGIN}/", "https://Directory.example:443#x"]
)
def test_domain_is_requested_at_the_well_known_paths(url: str) -> None:
    assert ListSource(url=url).places(None) == (
        f"{ORIGIN}/.well-known/ard.json",
        f"{ORIGIN}/.well-known/ai-catalog.json",
        f"{ORIGIN}/.well-known/api-catalog",
        f"{ORIGIN}/",
    )


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("a2a_registry", ("/api/agents?limit=100&offset=0",)),
        ("lifesign", ("/api/v1/agents?limit=1000&status=active,unhealthy,draining,dead",)),
        ("agntcy", ("/v1/agents?page_size=100",)),
        ("ai_catalog", ("/.well-known/ard.json", "/.well-known/ai-catalog.json")),
        ("anp", ("/.well-known/agent-descriptions",)),
        ("api_catalog", ("/.well-known/api-catalog",)),
        ("mcp_registry", ("/v0.1/servers?limit=100",)),
        ("nanda", ("/list",)),
        ("plain_list", ("/",)),
    ],
)
def test_format_of_a_domain_selects_the_requested_path(name: str, places: tuple[str, ...]) -> None:
    found = ListSource(url="directory.example", format=name).places(BUILT_IN[name])
    assert found == tuple(f"{ORIGIN}{place}" for place in places)


@pytest.mark.parametrize("url", [f"{ORIGIN}/agents.txt", f"{ORIGIN}/?list=1"])
def test_full_url_is_used_unchanged(url: str) -> None:
    assert ListSource(url=url).places(None) == (url,)
    assert ListSource(url=url).places(BUILT_IN["mcp_registry"]) == (url,)


def test_place_of_a_file_is_its_path() -> None:
    assert ListSource(file=Path("agents.txt")).places(None) == ("agents.txt",)


@pytest.mark.parametrize(
    ("url", "file"), [(None, None), (ORIGIN, Path("x")), ("ftp://x.example/", None), ("https://{x}/", None)]
)
def test_invalid_directory_is_refused(url: str | None, file: Path | None) -> None:
    with pytest.raises(InvalidValue):
        ListSource(url=url, file=file)


# ── the key ──


def test_refusal_shows_no_password() -> None:
    with pytest.raises(InvalidValue) as refused:
        ListSource(url="https://u:s3cret@directory.example/")
    assert str(refused.value).endswith("got 'https://...@directory.example/'")


def test_key_is_sent_only_to_its_own_origin() -> None:
    source = ListSource(url=f"{ORIGIN}/list", key="secret")
    assert source.request_for(f"{ORIGIN}/other?x=1").key == "secret"
    for url in ("http://directory.example/list", f"{ORIGIN}:8443/list", "https://x.directory.example/list"):
        assert source.request_for(url).key is None


@pytest.mark.parametrize("place", ["/a/list", "/a/"])
def test_key_is_sent_only_below_the_folder_of_the_directory(place: str) -> None:
    source = ListSource(url=f"{ORIGIN}{place}", key="secret")
    for path in (place, f"{place}?cursor=x", "/a/other", "/a/b/c"):
        assert source.request_for(f"{ORIGIN}{path}").key == "secret"
    for path in ("/", "/b/list", "/ab", "/a/../b", "/a/%2e%2e/b", "/a%2fb", "/a/..;/b"):
        assert source.request_for(f"{ORIGIN}{path}").key is None


def test_key_is_never_shown() -> None:
    source = ListSource(url=ORIGIN, key="secret")
    assert "secret" not in repr(source) + repr(source.request_for(ORIGIN)) + source.settings(ORIGIN)


@pytest.mark.parametrize("key", ["", "two words", "a\nb", "é", "x" * 5_000])
def test_key_invalid_in_a_header_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(InvalidValue, match="visible ASCII") as refused:
        ListSource(url=ORIGIN, key=key)
    assert not key or key not in str(refused.value)


def test_key_over_plain_http_is_refused() -> None:
    with pytest.raises(InvalidValue, match="https"):
        ListSource(url="http://directory.example/list", key="secret")
    assert ListSource(url="http://127.0.0.1:8000/list", key="secret").key == "secret"


# ── differences between two readings ──


def test_changed_reading_settings_count_as_another_source() -> None:
    source = ListSource(url=ORIGIN)
    others = [
        source.settings(f"{ORIGIN}/other"),
        ListSource(url=ORIGIN, format="plain_list").settings(ORIGIN),
        ListSource(url=ORIGIN, kinds=frozenset({Kind.MCP})).settings(ORIGIN),
    ]
    assert len({source.settings(ORIGIN), *others}) == 4
    assert ListSource(url=ORIGIN, key="secret").settings(ORIGIN) == source.settings(ORIGIN)
