"""Prose of the project: the texts of documents, source files and templates that a person reads."""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tools.syntax_tree import walked

REPOSITORY = Path(__file__).parents[2]
PRAGMA = re.compile(r"#\s*(noqa|type:|fmt:|pragma|!)")
COMMENT = re.compile(
    r'''
        """(?:[^"\\]|\\.|"(?!""))*"""
        | \'\'\'(?:[^'\\]|\\.|'(?!\'\'))*\'\'\'
        | "(?:[^"\\\n]|\\.)*"
        | '(?:[^'\\\n]|\\.)*'
        | (?P<comment>\#[^\n]*)
    ''',
    re.DOTALL | re.VERBOSE,
)
"""A string of Python, or a comment: the module `tokenize` takes sixteen times as long."""
SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|ALTER|DROP|PRAGMA|LOCK|SET|COPY)\b")


class Passage(NamedTuple):
    """A piece of prose with its place."""

    where: str
    text: str


class _Module(NamedTuple):
    """Texts of a Python module with their lines."""

    first_line: str | None
    docstrings: list[tuple[int, str]]
    messages: list[tuple[int, str]]
    test_names: list[tuple[int, str]]


def markdown(path: Path) -> Iterator[Passage]:
    """Return the sentences of a Markdown page without its code, addresses and quotations."""
    text = re.sub(r"^(```|~~~).*?^\1", " ", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->|^\|[-| :]*\|$", " ", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^\|(.*)\|\s*$", lambda row: ". ".join(row[1].split("|")) + ".", text, flags=re.MULTILINE)
    text = re.sub(r"^#+ (.*)$", r"\1.", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*([*-]|\d+\.) ", ". ", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`|\"[^\"\n]*\"", "X", text)
    return _sentences(path, re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))


def headings(path: Path) -> list[str]:
    """Return the headings of a Markdown page."""
    text = re.sub(r"^(```|~~~).*?^\1", " ", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)


def template(path: Path) -> Iterator[Passage]:
    """Return the sentences of a Jinja template."""
    text = re.sub(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}", " X ", path.read_text(), flags=re.DOTALL)
    return _sentences(path, re.sub(r"<[^>]*>", ". ", text))


def docstrings(path: Path) -> Iterator[Passage]:
    """Return the sentences of a module's docstrings: those of modules, classes, functions and attributes."""
    for line, text in _module(path).docstrings:
        yield from _sentences(path, text, line)


def messages(path: Path) -> Iterator[Passage]:
    """Return the texts of a module: its strings with a space in them, without docstrings and SQL."""
    return _passages(path, _module(path).messages)


def comments(path: Path) -> Iterator[Passage]:
    """Return the comments of a module, adjacent lines as one."""
    text = path.read_text()
    lines: list[tuple[int, str]] = []
    number, start = 1, 0
    for found in COMMENT.finditer(text):
        if found["comment"] and not PRAGMA.match(found["comment"]):
            number += text.count("\n", start, found.start())
            start = found.start()
            lines.append((number, found["comment"].lstrip("# ")))
    return _blocks(path, lines)


def hash_comments(path: Path) -> Iterator[Passage]:
    """Return the comments of a Makefile, shell script, YAML or TOML file, adjacent lines as one."""
    lines = [
        (number, found[1])
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if (found := re.search(r"(?:^|\s)##?\s+(\S.*)$", line))
    ]
    return _blocks(path, lines)


def script_comments(path: Path) -> Iterator[Passage]:
    """Return the comments of a JavaScript file or a style sheet, adjacent lines as one."""
    lines = [
        (text.count("\n", 0, found.start()) + 1 + offset, line.strip(" /*"))
        for text in (path.read_text(),)
        for found in re.finditer(r"/\*.*?\*/|(?<!:)//[^\n]*", text, flags=re.DOTALL)
        for offset, line in enumerate(found[0].split("\n"))
    ]
    return _blocks(path, lines)


def json_texts(path: Path) -> Iterator[Passage]:
    """Return the titles, summaries and descriptions of a JSON schema or an OpenAPI document."""

    def texts(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            for name, member in value.items():
                if name in {"title", "summary", "description"} and isinstance(member, str):
                    yield member
                else:
                    yield from texts(member)
        elif isinstance(value, list):
            for item in value:
                yield from texts(item)

    for text in texts(json.loads(path.read_text())):
        yield from _sentences(path, text)


def test_names(path: Path) -> Iterator[Passage]:
    """Return the names of a module's tests as sentences."""
    return _passages(path, _module(path).test_names)


def first_line(path: Path) -> str | None:
    """Return the first line of a module's docstring; None if it has none."""
    return _module(path).first_line


@cache
def _module(path: Path) -> _Module:
    """Read a module once for all functions above; its tree is not kept."""
    tree = ast.parse(path.read_text())
    docstring = ast.get_docstring(tree)
    module = _Module(None if docstring is None else docstring.split("\n")[0].strip(), [], [], [])
    alone: set[int] = set()
    # A statement comes before its parts.
    for node in walked(tree):
        if isinstance(node, ast.Expr):
            alone.add(id(node.value))
            if isinstance(node.value, ast.Constant):
                module.docstrings.append((node.lineno, str(node.value.value)))
        elif isinstance(node, ast.Constant) and isinstance(text := node.value, str):
            if id(node) not in alone and " " in text.strip() and not SQL.match(text):
                module.messages.append((node.lineno, text))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            module.test_names.append((node.lineno, node.name.removeprefix("test_").replace("_", " ")))
    return module


def _passages(path: Path, texts: list[tuple[int, str]]) -> Iterator[Passage]:
    for line, text in texts:
        yield Passage(f"{path.relative_to(REPOSITORY)}:{line}", text)


def _blocks(path: Path, lines: list[tuple[int, str]]) -> Iterator[Passage]:
    start, last, block = 0, -1, ""
    for number, text in lines:
        if number != last + 1:
            yield from _sentences(path, block, start)
            start, block = number, ""
        block, last = f"{block} {text}", number
    yield from _sentences(path, block, start)


def _sentences(path: Path, text: str, line: int | None = None) -> Iterator[Passage]:
    where = f"{path.relative_to(REPOSITORY)}" + ("" if line is None else f":{line}")
    for sentence in re.split(r"(?<=[.!?:])\s+", re.sub(r"\s+", " ", text)):
        if len(re.findall(r"[A-Za-z]{2,}", sentence)) > 2:
            yield Passage(where, sentence.strip())
