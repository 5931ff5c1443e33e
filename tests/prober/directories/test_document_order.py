import re
from collections.abc import Mapping
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.directories import URL, document

from lifesign.prober.directories import document_order as module
from lifesign.prober.directories.document_order import (
    MAX_EMPTY_PAGES,
    MAX_FINDINGS,
    Endless,
    Step,
    TooManyDocuments,
    Walk,
)
from lifesign.prober.directories.format_parser import MAX_NESTING_DEPTH, NESTED_SHARE, DirectoryPage, Document

UNREADABLE = ("//[", "http://[x", "https://a]b/", "//\u2100/")


def page(
    following: Mapping[str, str] | str | None = None,
    *,
    items: int | None = 1,
    total: int | None = None,
    nested: tuple[str, ...] = (),
) -> DirectoryPage:
    return DirectoryPage(entries=(), items=items, total=total, next_page=following, nested=nested)


def take(walk: Walk, one: DirectoryPage, url: str = URL, depth: int = 0, body: str = "") -> Document:
    """Take a document whose body is its own unless one is given."""
    taken = document(body or f"body {walk.documents}", url=url)
    if walk.take(taken, depth):
        walk.follow(taken, one, depth)
    return taken


def names(walk: Walk) -> list[str]:
    return [finding.name for finding in walk.findings()]


@pytest.mark.parametrize(
    ("url", "following", "expected"),
    [
        (URL, {"offset": "100"}, f"{URL}?offset=100"),
        (f"{URL}?offset=0&limit=5&x=", {"offset": "5"}, f"{URL}?offset=5&limit=5&x="),
        (f"{URL}?a=1#part", {"cursor": "a b&c=d/+é"}, f"{URL}?a=1&cursor=a+b%26c%3Dd%2F%2B%C3%A9"),
        (URL, "/list/2", "https://directory.example/list/2"),
        (URL, f"{URL}?page=2", f"{URL}?page=2"),
    ],
)
def test_the_next_page_is_a_query_or_a_url(
    url: str, following: Mapping[str, str] | str, expected: str
) -> None:
    walk = Walk()
    take(walk, page(following), url)
    assert walk.next_step() == Step(expected, 0)
    assert walk.next_step() is None


@pytest.mark.parametrize("following", UNREADABLE)
def test_malformed_url_of_the_next_page_ends_the_reading(following: str) -> None:
    with pytest.raises(Endless, match="no URL"):
        take(Walk(), page(following))


@given(st.text(), st.text())
def test_any_document_is_read_or_refused_with_a_reason(following: str, nested: str) -> None:
    walk = Walk()
    with suppress(Endless):
        take(walk, page(following, nested=(nested, f"//{nested}")))
    while (step := walk.next_step()) is not None:
        assert step.url.startswith("https://")


@pytest.mark.parametrize(
    "following", ["https://other.example/list", "http://directory.example/list?2", "//x.example"]
)
def test_next_page_is_never_on_another_origin(following: str) -> None:
    with pytest.raises(Endless, match="another origin"):
        take(Walk(), page(following))


def test_remaining_pages_of_a_list_are_read_before_linked_catalogs() -> None:
    walk = Walk()
    take(walk, page({"p": "2"}, nested=("/a.json", "/b.json", "/a.json")))
    steps = [walk.next_step() for _ in range(4)]
    assert steps == [
        Step(f"{URL}?p=2", 0),
        Step("https://directory.example/a.json", 1, begins_catalog=True),
        Step("https://directory.example/b.json", 1, begins_catalog=True),
        None,
    ]


def test_list_is_read_completely_before_its_first_linked_catalog() -> None:
    walk = Walk()
    take(walk, page({"p": "2"}, nested=("/a.json",)))
    step = walk.next_step()
    assert step is not None
    take(walk, page({"p": "3"}, nested=("/b.json",)), step.url)
    steps = [walk.next_step() for _ in range(3)]
    assert [step.url.rpartition("/")[2] for step in steps if step] == ["list?p=3", "a.json", "b.json"]


def test_catalogs_that_link_to_each_other_are_read_once() -> None:
    walk = Walk()
    take(walk, page(nested=("/a.json", URL)))
    step = walk.next_step()
    assert step is not None
    take(walk, page(nested=("/list", "/a.json")), step.url, step.depth)
    assert walk.next_step() is None
    assert walk.documents == 2


def test_linked_catalog_beyond_the_depth_limit_is_skipped() -> None:
    walk = Walk()
    take(walk, page(nested=("/a.json",)), depth=MAX_NESTING_DEPTH)
    assert walk.next_step() is None
    assert names(walk) == ["nested_not_read"]


@pytest.mark.parametrize("place", ["ftp://a.example/", "https://{x}/", "//{x}/", *UNREADABLE])
def test_catalog_without_url_is_reported(place: str) -> None:
    walk = Walk()
    take(walk, page(nested=(place,)))
    assert (walk.next_step(), names(walk)) == (None, ["nested_not_read"])


def test_path_in_a_file_has_no_base() -> None:
    walk = Walk()
    take(walk, page({"p": "2"}, nested=("/a.json", "https://a.example/b.json")), url="")
    assert walk.next_step() == Step("https://a.example/b.json", 1, begins_catalog=True)
    assert sorted(names(walk)) == ["first_page_only", "nested_not_read"]


# ── cycles and endless pages ──


def test_next_page_that_was_already_read_is_an_error() -> None:
    walk = Walk()
    take(walk, page({"cursor": "a"}))
    with pytest.raises(Endless, match="read before"):
        take(walk, page({"cursor": "a"}), f"{URL}?cursor=a")


def test_identical_content_for_the_next_page_is_an_error() -> None:
    walk = Walk()
    take(walk, page({"offset": "1"}, total=3), body="same")
    with pytest.raises(Endless, match="same page"):
        take(walk, page({"offset": "1"}, total=3), f"{URL}?offset=1", body="same")


def test_circle_of_pages_is_reported() -> None:
    walk = Walk()
    take(walk, page({"cursor": "a"}, items=2, total=2))
    assert walk.next_step() is not None
    take(walk, page({"cursor": "a"}, items=0, total=2), f"{URL}?cursor=a")
    assert walk.next_step() is None
    assert names(walk) == ["paging_repeats"]


def test_number_of_empty_pages_is_bounded() -> None:
    walk = Walk()
    for number in range(MAX_EMPTY_PAGES):
        take(walk, page({"p": str(number)}, items=0))
    take(walk, page({"p": "more"}))
    for number in range(MAX_EMPTY_PAGES):
        take(walk, page({"p": f"again {number}"}, items=0))
    with pytest.raises(Endless, match="empty pages"):
        take(walk, page({"p": "last"}, items=0))


def test_pages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DOCUMENTS", 2)
    walk = Walk()
    take(walk, page({"p": "1"}, nested=("/a.json", "/b.json")))
    take(walk, page({"p": "2"}, nested=("/c.json",)))
    with pytest.raises(TooManyDocuments):
        take(walk, page({"p": "3"}))


# ── nested catalogs ──


def follow(walk: Walk, one: DirectoryPage) -> str:
    """Take the next document, and return the last part of its URL."""
    step = walk.next_step()
    assert step is not None
    take(walk, one, step.url, step.depth)
    return step.url.rpartition("/")[2]


def test_documents_of_a_nested_catalog_are_read_before_the_next_catalog() -> None:
    walk = Walk()
    take(walk, page(nested=("/a", "/b")))
    read = [follow(walk, page({"p": "2"}, nested=("/a1", "/a2")))]
    read += [follow(walk, page()) for _ in range(4)]
    assert read == ["a", "a?p=2", "a1", "a2", "b"]
    assert walk.next_step() is None


def test_all_nested_documents_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DOCUMENTS", 2)
    walk = Walk()
    take(walk, page(nested=("/a", "/b", "/c", "/d")))
    assert [follow(walk, page()), follow(walk, page()), walk.next_step()] == ["a", "b", None]
    assert (walk.unread, names(walk)) == (1, ["nested_not_read"])


def test_documents_of_one_nested_catalog_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DOCUMENTS", 2 * NESTED_SHARE)
    walk = Walk()
    take(walk, page(nested=("/a", "/b")))
    assert follow(walk, page(nested=("/a1", "/a2", "/a3"))) == "a"
    assert walk.unread == 1
    assert follow(walk, page()) == "a1"
    with pytest.raises(TooManyDocuments):
        follow(walk, page({"p": "2"}))
    assert follow(walk, page(nested=("/b1", "/a3"))) == "b"
    assert [follow(walk, page()), follow(walk, page()), walk.next_step()] == ["b1", "a3", None]
    assert walk.unread == 1


def test_document_that_was_given_up_is_read_for_another_catalog() -> None:
    walk = Walk()
    take(walk, page(nested=("/a", "/b")))
    follow(walk, page(nested=("/b1",)))
    step = walk.next_step()
    assert step is not None
    walk.give_up(step, "too slow")
    follow(walk, page(nested=("/b1",)))
    assert follow(walk, page()) == "b1"
    assert (walk.unread, names(walk)) == (1, ["nested_not_read"])


def test_catalog_of_one_author_does_not_hide_documents_of_another() -> None:
    """The first one names the second one's documents, at a depth at which nothing else is read."""
    walk = Walk()
    take(walk, page(nested=("/a", "/b")))
    read = [follow(walk, page(nested=(f"/{name}",))) for name in ("a2", "a3", "b2", "b3")]
    read += [follow(walk, page(nested=(f"/{name}",))) for name in ("b2", "b3")]
    read.append(follow(walk, page()))
    assert read == ["a", "a2", "a3", "b2", "b", "b2", "b3"]
    assert walk.next_step() is None


def test_document_that_is_named_at_a_smaller_depth_is_read_again() -> None:
    walk = Walk()
    take(walk, page(nested=("/a",)))
    read = [follow(walk, page(nested=("/a2", "/a3"))), follow(walk, page(nested=("/x",)))]
    read += [follow(walk, page(nested=("/b",))), follow(walk, page(nested=("/c",)))]
    read += [follow(walk, page(nested=("/b",))), follow(walk, page(nested=("/c",))), follow(walk, page())]
    assert read == ["a", "a2", "x", "b", "a3", "b", "c"]
    assert walk.next_step() is None


def test_copy_at_another_place_hides_no_catalog() -> None:
    """Relative entries lead elsewhere there."""
    walk = Walk()
    assert walk.take(document("same", url="https://a.example/list"), 1)
    walk.follow(document("same", url="https://a.example/list"), page(), 1)
    assert walk.take(document("same", url="https://b.example/list"), 1)
    assert not walk.take(document("same", url="https://a.example/list?page=2"), 1)


def test_unused_document_does_not_hide_another_one_with_the_same_content() -> None:
    walk = Walk()
    one = document("same", url=f"{URL}/a")
    assert walk.take(one, 1)
    assert walk.take(document("same", url=f"{URL}/b"), 1)


def test_page_that_an_entry_names_as_a_catalog_is_read_as_a_page() -> None:
    walk = Walk()
    take(walk, page({"p": "2"}, nested=("/list?p=2", "/list?p=3")))
    assert follow(walk, page({"p": "3"})) == "list?p=2"
    assert follow(walk, page()) == "list?p=3"
    assert (walk.next_step(), names(walk)) == (None, [])


def test_empty_pages_of_one_catalog_do_not_count_for_the_next() -> None:
    walk = Walk()
    take(walk, page(nested=("/a", "/b")))
    for name in ("a", "b"):
        step = walk.next_step()
        assert step is not None
        assert step.url.endswith(name)
        for number in range(MAX_EMPTY_PAGES):
            take(walk, page({"p": str(number)}, items=0), step.url, 1)
            step = walk.next_step()
            assert step is not None
        take(walk, page(items=0), step.url, 1)


def test_two_catalogs_with_equal_content_are_accepted() -> None:
    walk = Walk()
    take(walk, page(), depth=1, body="same")
    take(walk, page(), depth=1, body="same")
    assert walk.documents == 2


# ── findings ──


def test_total_that_was_not_served_is_reported() -> None:
    walk = Walk()
    take(walk, page({"offset": "100"}, items=100, total=219))
    take(walk, page({"offset": "200"}, items=100, total=219), f"{URL}?offset=100")
    take(walk, page(items=0, total=219), f"{URL}?offset=200")
    (finding,) = walk.findings()
    assert finding.name == "total_differs"
    assert re.findall(r"\d+", finding.message) == ["219", "200"]


@pytest.mark.parametrize("user", ["u:s3cret", "s3cret", "s3cret" * 20])
def test_a_password_in_a_catalogs_url_is_not_repeated(user: str) -> None:
    walk = Walk()
    take(walk, page(nested=(f"https://{user}@a.example/b.json",)))
    (finding,) = walk.findings()
    assert finding.message.endswith(": 'https://...@a.example/b.json'")


def test_items_of_linked_catalogs_do_not_count_towards_the_total() -> None:
    walk = Walk()
    take(walk, page(items=2, total=2, nested=("/a.json",)))
    take(walk, page(items=50), depth=1)
    assert (walk.items, walk.findings()) == (2, [])


def test_list_without_a_total_is_not_compared() -> None:
    walk = Walk()
    take(walk, page(items=None, total=5))
    assert (walk.items, walk.findings()) == (None, [])


def test_findings_are_reported_once_and_bounded() -> None:
    walk = Walk()
    for number in range(2 * MAX_FINDINGS):
        walk.note("nested_not_read", f"number {number // 2}")
    assert len(walk.findings()) == MAX_FINDINGS
    assert walk.findings()[1].message == "number 1"


def test_directory_is_single_until_it_links_to_another_document() -> None:
    walk = Walk()
    take(walk, page())
    assert walk.is_single
    take(walk, page(nested=("/a.json",)))
    assert not walk.is_single
