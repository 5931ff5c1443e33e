from typing import Any

import pytest
from tests.support.directories import document, listed, read, skipped

from lifesign.prober.directories.anp_descriptions import AnpDescriptions
from lifesign.prober.directories.format_parser import Kind, NotReadable

EXAMPLE = {"@type": "CollectionPage", "items": [{"@type": "ad:AgentDescription"}]}

ANP = AnpDescriptions()


def description(**more: Any) -> dict[str, Any]:
    return {"@type": "ad:AgentDescription", "@id": "https://a.example/ad.json", "name": "One"} | more


def test_agents_of_another_protocol_are_reported() -> None:
    page = read(ANP, {"@type": "CollectionPage", "items": [description(), 7]})
    assert (listed(page), page.items) == ([], 2)
    assert skipped(page) == [("https://a.example/ad.json", "not_a2a"), ("", "unreadable")]


@pytest.mark.parametrize("key", ["ad:interfaces", "interfaces"])
def test_an_interface_that_speaks_a2a_is_listed(key: str) -> None:
    interfaces = [{"protocol": "YAML", "url": "https://a.example/x.yaml"}, {"protocol": "a2a", "url": "/a2a"}]
    assert listed(read(ANP, description(**{key: interfaces}))) == [("/a2a", "One", Kind.A2A_ENDPOINT)]


def test_the_next_page_is_a_url() -> None:
    page = read(ANP, {"items": [description()], "next": "https://directory.example/list?page=2"})
    assert page.next_page == "https://directory.example/list?page=2"
    assert read(ANP, {"items": [description()], "next": ""}).next_page is None


@pytest.mark.parametrize("following", [5, ["x"], "x" * 5_000])
def test_invalid_url_of_the_next_page_is_refused(following: object) -> None:
    with pytest.raises(NotReadable, match="next"):
        ANP.read(document({"items": [description()], "next": following}))


@pytest.mark.parametrize("value", [[], {}, {"items": []}, {"items": [1]}, {"@type": "Person"}])
def test_other_json_is_not_recognised(value: object) -> None:
    assert not ANP.recognises(document(value))


@pytest.mark.parametrize("value", [[], {}, {"items": "x"}])
def test_document_without_items_is_refused_for_a_named_format(value: object) -> None:
    with pytest.raises(NotReadable):
        ANP.read(document(value))
