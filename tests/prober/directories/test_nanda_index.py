import pytest
from tests.support.directories import document, listed, read, skipped

from lifesign.prober.directories.format_parser import Kind, NotReadable
from lifesign.prober.directories.nanda_index import NandaIndex

EXAMPLE = {"agentm1": "https://a.example/"}

INDEX = NandaIndex()


def test_every_agent_is_listed_by_its_id() -> None:
    value = {"agentm1": "http://a.example:6000", "agentm2": "https://b.example/", "agentm3": None}
    page = read(INDEX, value)
    assert listed(page) == [
        ("http://a.example:6000", "agentm1", Kind.UNKNOWN),
        ("https://b.example/", "agentm2", Kind.UNKNOWN),
    ]
    assert (page.items, skipped(page)) == (3, [("agentm3", "no_url")])


def test_members_of_older_indexes_are_ignored() -> None:
    page = read(INDEX, {"agent_status": {"agentm1": {"alive": True}}, "agentm1": "http://a.example:6000"})
    assert (page.items, skipped(page)) == (1, [])


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        {"name": "One", "url": "https://a.example/", "version": "1"},
        {"$schema": "https://a.example/s", "$id": "https://a.example/i"},
        {"agent_status": {}},
        {"a": 1, "b": 2},
    ],
)
def test_other_json_is_not_recognised(value: object) -> None:
    assert not INDEX.recognises(document(value))


def test_empty_index_is_accepted_for_a_named_format() -> None:
    assert INDEX.read(document({})).items == 0


@pytest.mark.parametrize("value", [[], {"error": "database is unreachable"}])
def test_index_that_is_no_map_of_urls_is_refused_for_a_named_format(value: object) -> None:
    with pytest.raises(NotReadable):
        INDEX.read(document(value))
