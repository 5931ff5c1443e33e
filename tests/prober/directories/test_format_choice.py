import gzip
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.cards import CARD_10, JSON
from tests.support.directories import document, listed
from tests.support.properties import examples
from tools.page_tables import DOCS, pages

from lifesign.errors import InvalidValue
from lifesign.prober.directories import ListSource, Snapshot, format_choice, read_directory
from lifesign.prober.directories.format_choice import (
    BUILT_IN,
    DETECTED_BY_CONTENT,
    FALLBACK_FORMATS,
    BrokenPlugIn,
    describe,
    format_called,
    format_of,
    names,
    plug_ins,
)
from lifesign.prober.directories.format_parser import DirectoryPage, Document, NotReadable
from lifesign.prober.directories.snapshot import NotRead
from lifesign.prober.directories.target_collection import Gathered

FILES = {name: type(one).__module__.rpartition(".")[2] for name, one in BUILT_IN.items()}


def examples_of_formats() -> dict[str, object]:
    """Return the EXAMPLE of each format's test file; a format without one is absent."""
    found = {}
    for name, file in FILES.items():
        with suppress(ModuleNotFoundError, AttributeError):
            found[name] = import_module(f"tests.prober.directories.test_{file}").EXAMPLE
    return found


EXAMPLES = examples_of_formats()
KEYS = sorted({key for example in EXAMPLES.values() if isinstance(example, dict) for key in example})


def test_every_format_has_an_example() -> None:
    missing = [
        f"tests/prober/directories/test_{file}.py" for name, file in FILES.items() if name not in EXAMPLES
    ]
    assert not missing, f"add EXAMPLE, a document of the format, to these files: {', '.join(missing)}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_format_is_recognized_by_content_only(name: str) -> None:
    found, complaints = format_of(document(EXAMPLES[name]))
    assert found is not None
    assert (found.name, complaints) == (name, [])
    others = [one.name for one in DETECTED_BY_CONTENT if one.recognises(document(EXAMPLES[name]))]
    assert others == [name] or BUILT_IN[name] in FALLBACK_FORMATS


FOREIGN_ENTRIES = [
    7,
    {},
    {"agent_id": "a", "status": "active"},
    {"wellKnownURI": "https://a.example/"},
    {"identifier": "urn:a", "type": "text/plain"},
    {"server": {"name": "a", "packages": []}},
    {"@type": "ad:AgentDescription"},
    {"schema_version": "1", "skills": []},
]


@pytest.mark.parametrize("foreign", FOREIGN_ENTRIES, ids=str)
@pytest.mark.parametrize("name", EXAMPLES)
def test_first_entry_alone_does_not_decide_about_the_format(name: str, foreign: object) -> None:
    example = EXAMPLES[name]
    if isinstance(example, list):
        example = [foreign, *example * 3]
    elif isinstance(example, dict):
        items = {
            key: [foreign, *value * 3] for key, value in example.items() if value and isinstance(value, list)
        }
        example = example | items
    found, _ = format_of(document(example))
    assert found is not None
    assert found.name == name


def test_agntcy_page_is_not_mistaken_for_ard() -> None:
    entry = {"identifier": "urn:a:1", "type": "application/a2a-agent-card+json", "url": "https://a.example/"}
    made = document({"results": [entry], "nextPageToken": "abc", "totalCount": 219})
    found, _ = format_of(made)
    assert found is not None
    assert (found.name, found.read(made).next_page) == ("agntcy", {"page_token": "abc", "page_size": "100"})


def test_every_format_of_the_folder_is_chosen() -> None:
    others = {"format_choice", "format_parser"}
    found = {
        file.stem
        for file in Path(format_choice.__file__).parent.glob("*.py")
        if "def recognises(" in file.read_text() and file.stem not in others
    }
    assert found - set(FILES.values()) == set(), (
        "add an instance to DETECTED_BY_CONTENT or FALLBACK_FORMATS of format_choice.py"
    )
    assert set(names()) == set(BUILT_IN)
    assert all(format_called(name) is BUILT_IN[name] for name in BUILT_IN)


def test_every_format_has_a_meaning() -> None:
    missing = [name for name, one in BUILT_IN.items() if not (type(one).__doc__ or "").strip()]
    assert not missing, f"add a docstring to the classes of these formats: {', '.join(missing)}"


def test_the_page_of_the_prober_has_every_format() -> None:
    assert (DOCS / "prober.md").read_text() == pages()["prober.md"], "run: make schemas"


def test_unknown_format_is_an_error_of_the_caller() -> None:
    with pytest.raises(InvalidValue, match=r"one of auto, a2a_registry, .*plain_list"):
        format_called("yellow_pages")


@settings(max_examples=examples(50))
@given(JSON | st.dictionaries(st.sampled_from(KEYS), JSON))
def test_any_json_is_read_refused_or_not_recognised(value: object) -> None:
    made = document(json.dumps(value))
    found, _ = format_of(made)
    for one in BUILT_IN.values():
        try:
            page = one.read(made)
        except NotReadable:
            assert one is not found
            continue
        gathered = Gathered()
        gathered.add(page.entries, made.url)
    assert describe(made)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("<!doctype html><p>Hello", "a page"),
        ("Service Unavailable", "text"),
        ('{"a": ', "not JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        ("[" * 5_000, "not JSON"),
        ("https://a.example/".encode("utf-16-le"), "UTF-16 without a byte order mark"),
        (gzip.compress(b"https://a.example/\n", mtime=0), "gzip"),
        ("https://a.example/".encode("utf-32"), "text"),
        ('[\n"https://a.example/"]'.encode("utf-16"), "JSON in UTF-16: save it as UTF-8"),
        ("Service Unavailable".encode("utf-16"), "text"),
        ([1, 2], "a JSON list"),
        ({"$schema": "https://json-schema.org/draft-07/schema", "properties": {}}, "a JSON Schema"),
        (CARD_10, "A2A card"),
        ({"error": 1, "message\n": 2}, r"error, message\n"),
        ({}, "empty"),
        ([], "empty"),
    ],
)
def test_unrecognized_content_is_described(content: object, words: str) -> None:
    made = document(content)
    assert format_of(made)[0] is None
    assert words in describe(made)


# ── formats of other packages ──

GOOD = """
from lifesign.prober.directories import Document, Listed, DirectoryPage, NotReadable, Skipped

class YellowPages:
    name = "yellow_pages"
    place = "/yellow"

    def recognises(self, document):
        return document.body.startswith(b"YELLOW")

    def read(self, document):
        if not self.recognises(document):
            raise NotReadable("expected YELLOW")
        lines = document.body.decode().split("\\n")[1:]
        entries = [Listed(line) if "." in line else Skipped(line, "no_url") for line in lines]
        return DirectoryPage(entries=entries)

PAGES = YellowPages()
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package with formats: its source, and what its entry points are called and lead to."""
    loaded = set(sys.modules)

    def install(source: str, **entry_points: str) -> None:
        (tmp_path / "yellow_pages.py").write_text(source)
        about = tmp_path / "yellow_pages-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: yellow-pages\nVersion: 1.0\n")
        lines = [f"{name} = {place}" for name, place in entry_points.items()]
        (about / "entry_points.txt").write_text("\n".join(["[lifesign.directories]", *lines]))
        monkeypatch.syspath_prepend(str(tmp_path))

    yield install
    for module in set(sys.modules) - loaded:
        if module.startswith("yellow_pages"):
            del sys.modules[module]


def written(tmp_path: Path, text: str) -> ListSource:
    file = tmp_path / "agents"
    file.write_text(text)
    return ListSource(file=file)


@pytest.mark.parametrize("place", ["yellow_pages:PAGES", "yellow_pages:YellowPages"])
async def test_format_of_another_package_is_chosen_by_content_and_by_name(
    place: str, install: Install, tmp_path: Path
) -> None:
    install(GOOD, yellow_pages=place)
    assert names() == (*BUILT_IN, "yellow_pages")
    assert format_called("yellow_pages").place == "/yellow"
    # Our own plain list would take it too.
    found = await read_directory(written(tmp_path, "YELLOW\na.example\nb.example\nnobody"))
    assert isinstance(found, Snapshot)
    assert (found.format, len(found.entries), found.left_out["no_url"].count) == ("yellow_pages", 2, 1)


async def test_list_that_its_format_refuses_is_refused(install: Install, tmp_path: Path) -> None:
    install(GOOD, yellow_pages="yellow_pages:PAGES")
    source = written(tmp_path, "a.example")
    found = await read_directory(ListSource(file=source.file, format="yellow_pages"))
    assert isinstance(found, NotRead)
    assert (found.fault, found.message.startswith("expected YELLOW")) == ("not_a_directory", True)


def test_reserved_and_invalid_names_cannot_be_registered(install: Install) -> None:
    install(GOOD, plain_list="yellow_pages:PAGES", auto="yellow_pages:PAGES", Yellow="yellow_pages:PAGES")
    assert plug_ins() == {}
    assert format_called("plain_list") is BUILT_IN["plain_list"]


BROKEN = {
    "it cannot be imported": ("import no_such_module_of_anybody", "PAGES"),
    "it is no Python": ("def", "PAGES"),
    "it wants to leave": ("raise SystemExit", "PAGES"),
    "there is nothing": ("", "PAGES"),
    "it cannot be made": ("class Pages:\n    def __init__(self): raise RuntimeError('no')", "Pages"),
    "it is something else": ("PAGES = 7", "PAGES"),
    "it has no place": (GOOD.replace('place = "/yellow"', ""), "PAGES"),
    "its place is no text": (GOOD.replace('place = "/yellow"', "place = 7"), "PAGES"),
    "it cannot look": (GOOD.replace("return document.body", "return document.bodies"), "PAGES"),
    "it cannot read": (GOOD.replace("lines = ", "lines = 1 / 0 or "), "PAGES"),
    "it reads a list": (
        GOOD.replace("DirectoryPage(entries=entries)", "entries"),
        "PAGES",
    ),
    "it lists texts": (GOOD.replace("Listed(line)", "line"), "PAGES"),
    "it lists without text": (GOOD.replace("Listed(line)", "Listed(7)"), "PAGES"),
    "it skips for a reason of its own": (GOOD.replace('"no_url"', '"because"'), "PAGES"),
    "its next page is a number": (GOOD.replace("Page(e", "Page(next_page=7, e"), "PAGES"),
    "its total is a text": (GOOD.replace("Page(e", "Page(total='7', e"), "PAGES"),
    "its catalogs are a list": (GOOD.replace("Page(e", "Page(nested=['x'], e"), "PAGES"),
    "it breaks midway": (
        GOOD.replace("entries = [", "entries = [1 / 0, "),
        "PAGES",
    ),
}


@pytest.mark.parametrize("why", BROKEN)
async def test_a_broken_plug_in_is_an_error_and_no_crash(why: str, install: Install, tmp_path: Path) -> None:
    source, name = BROKEN[why]
    install(source, yellow_pages=f"yellow_pages:{name}")
    file = written(tmp_path, "YELLOW\na.example\nnobody").file
    found = await read_directory(ListSource(file=file, format="yellow_pages"))
    assert isinstance(found, NotRead)
    assert found.fault == "broken_plug_in"
    assert found.message.startswith("the directory format 'yellow_pages' of another package ")


async def test_broken_plugin_does_not_affect_other_formats(install: Install, tmp_path: Path) -> None:
    install("import no_such_module_of_anybody", yellow_pages="yellow_pages:PAGES")
    found = await read_directory(written(tmp_path, "a.example\nb.example"))
    assert isinstance(found, Snapshot)
    assert (found.format, len(found.entries)) == ("plain_list", 2)
    assert [finding.name for finding in found.findings] == ["broken_plug_in"]


def test_an_error_of_a_plug_in_names_it_and_its_cause(install: Install) -> None:
    install("raise ValueError('no ink')", yellow_pages="yellow_pages:PAGES")
    with pytest.raises(BrokenPlugIn, match=r"'yellow_pages'.* ValueError: no ink") as caught:
        format_called("yellow_pages")
    assert isinstance(caught.value.__cause__, ValueError)


def test_plugin_may_import_only_what_it_needs() -> None:
    from lifesign.prober import directories  # noqa: PLC0415 - as its author would

    assert {"Document", "Format", "Kind", "Listed", "NotReadable", "DirectoryPage", "Skipped"} <= set(
        directories.__all__
    )
    assert listed(DirectoryPage(entries=[directories.Listed("a.example")])) == [
        ("a.example", None, directories.Kind.UNKNOWN)
    ]


@pytest.mark.parametrize(
    ("body", "content_type", "what"),
    [
        (b"foo bar\n# c\nhttps://a.example\nx y\n", "", "text of which 2 of 3 lines|'foo bar' in line 1"),
        (b"\n# c\na.example\none\ntwo # d\n", "", "text of which 2 of 3 lines|'one' in line 4"),
        (b"url\nfoo\nbar\nhttps://a.example\n", "text/csv", "CSV of which 2 of 3 lines|'foo' in line 2"),
        (b"x,1\ny,2\na.example,3\n", "text/csv", "CSV of which 2 of 3 lines|'x' in line 1"),
        (b'["a.example","x","y"]', "application/json", "a JSON list of which 2 of 3 items|'x' in item 2"),
        (b'{"urls": ["x","y","a.example"]}', "", "a JSON list of which 2 of 3 items|'x' in item 1"),
        (b'{"url":"a.example"}\n"x"\n3\n', "application/jsonl", "text of which 2 of 3 lines|'x' in line 2"),
        (b"a.example\n" + b"\xff\n" * 30, "", "text of which 19 of the first 20 lines|'\\ufffd' in line 2"),
    ],
)
def test_first_invalid_line_of_a_list_is_named(body: bytes, content_type: str, what: str) -> None:
    document = Document(body, content_type)
    assert format_of(document)[0] is None
    counted, first = what.split("|")
    end = f" are neither a URL nor a domain, the first {first}; of a list at least half are"
    assert describe(document) == counted + end


@pytest.mark.parametrize("url", ["http://me:{}@a.example/b", "me:{}@a.example/b"])
@pytest.mark.parametrize("password", ["hunter2", "hunter2" * 12])
@pytest.mark.parametrize(
    "form", ["{0}\n{0}\na.example\n", "url,name\n{0},x\n{0},y\na.example,z\n", '["{0}", "{0}", "a.example"]']
)
def test_description_of_unrecognised_content_hides_passwords(form: str, password: str, url: str) -> None:
    found = describe(Document(form.format(url.format(password)).encode(), ""))
    assert "the first '" in found
    assert "...@a.example/b'" in found
    assert "hunter2" not in found


@given(st.binary(max_size=200), st.sampled_from(["", "text/csv", "application/json", "application/jsonl"]))
@example(b"#", "text/csv")
def test_any_content_is_recognized_or_described(body: bytes, content_type: str) -> None:
    assert describe(Document(body, content_type)).isprintable()
