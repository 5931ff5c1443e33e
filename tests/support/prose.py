"""Prose of the project: the texts of documents, source files and templates that a person reads."""

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[2]
PRAGMA = re.compile(r"#\s*(noqa|type:|fmt:|pragma|!)")
SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|ALTER|DROP|PRAGMA|LOCK|SET|COPY)\b")


class Passage(NamedTuple):
    """A piece of prose with its place."""

    where: str
    text: str


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
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield from _sentences(path, str(node.value.value), node.lineno)


def messages(path: Path) -> Iterator[Passage]:
    """Return the texts of a module: its strings with a space in them, without docstrings and SQL."""
    tree = ast.parse(path.read_text())
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in alone:
            continue
        if " " in node.value.strip() and not SQL.match(node.value):
            yield Passage(f"{path.relative_to(REPOSITORY)}:{node.lineno}", node.value)


def comments(path: Path) -> Iterator[Passage]:
    """Return the comments of a module, adjacent lines as one."""
    lines: list[tuple[int, str]] = [
        (token.start[0], token.string.lstrip("# "))
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        if token.type == tokenize.COMMENT and not PRAGMA.match(token.string)
    ]
    return _blocks(path, lines)


def hash_comments(path: Path) -> Iterator[Passage]:
    """Return the comments of a Makefile, shell script, YAML or TOML file, adjacent lines as one."""
    lines = [
        (number, found[1])
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if (found := re.search(r"(?:^|\s)##?\s+(\S.*)$", line))
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
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            text = node.name.removeprefix("test_").replace("_", " ")
            yield Passage(f"{path.relative_to(REPOSITORY)}:{node.lineno}", text)


def first_line(path: Path) -> str | None:
    """Return the first line of a module's docstring; None if it has none."""
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    return None if docstring is None else docstring.split("\n")[0].strip()


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
