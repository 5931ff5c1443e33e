"""YAML files as plain values, with the line of each value.

The files are YAML 1.1 without aliases, tags and numbers in base 60: a few lines of aliases unfold to
gigabytes, and nothing here needs any of them. Each error names its line, and one error names several faults.
A repeated key, an ambiguous number and a key that is not text are faults.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from yaml.constructor import SafeConstructor

from lifesign.domain.common.finding import json_pointer
from lifesign.domain.errors import FileFault, InvalidFile
from lifesign.domain.files.validation_messages import FORMS, known_expectation
from lifesign.domain.parsing.json_limits import MAX_NUMBER

MAX_FILE_BYTES = 1_048_576
MAX_NODES = 100_000
"""Keys and values in one file, read or not."""
MAX_DEPTH = 32
MAX_NUMBER_CHARACTERS = 400
"""Maximum length of a number; one beyond the range of doubles is refused at any length."""
MAX_FAULTS = 20
"""Maximum of faults in one error."""
MAX_SHOWN_CHARACTERS = 80
"""Maximum length of a key in a message."""

Path = tuple[str | int, ...]
"""Keys and indexes of the path to a value."""
Refuse = Callable[[Sequence[FileFault]], InvalidFile]
"""Makes the error that the caller's readers know."""

# Ten times as fast as the other one; a build of PyYAML without libyaml has none.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT = "tag:yaml.org,2002:str"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
_SURROGATE = re.compile("[\ud800-\udfff]")


class YamlDocument:
    """Content of a file: a mapping of plain values, with the line of each.

    Values are checked when they are read: unused ones are only bounded.
    """

    def __init__(self, text: str, *, expected: str, refuse: Refuse, secrets: str | None = None) -> None:
        """Read a text.

        `refuse` creates the error for a text that is invalid or no mapping, as `expected` describes.
        `secrets` is the top-level list whose items may have a secret as a key that was written in the wrong
        place: no error names the keys in them.
        """
        self._refuse = refuse
        self._secrets = secrets
        self._lines: dict[Path, int] = {(): 1}
        self._constructor = SafeConstructor()
        self._check_bounds(text)
        try:
            document = yaml.compose(text, Loader=_LOADER)
        except yaml.YAMLError as error:
            raise self._unreadable(error, text) from None
        if not isinstance(document, yaml.MappingNode):
            raise self.refused((), expected)
        self._document = document

    def to_dict(self) -> dict[str, Any]:
        """Return the whole content of the file."""
        return self._build_mapping(self._document, ())

    def section(self, key: str) -> Any:
        """Return the value of a top-level key; InvalidFile if the file has no such key."""
        found = [pair for pair in self._document.value if pair[0].value == key]
        if not found:
            raise self.refused((), f"expected the key {key}")
        if len(found) > 1:
            raise self._error_at(found[1][0], (key,), "this key occurs twice in the same mapping")
        key_node, value_node = found[0]
        return self._build_pair(key_node, value_node, ())[1]

    def refused(self, path: Path, expected: str) -> InvalidFile:
        """Return the error for one wrong value in the file, at this path of keys."""
        return self._refuse([FileFault(self._line_of(path), _pointer(path), expected)])

    def misread(
        self,
        error: ValidationError,
        model: type[BaseModel],
        *,
        forms: Mapping[str, str] = FORMS,
        at: Path = (),
        skipped: int = 0,
        place: Callable[[ErrorDetails], Path] = lambda details: details["loc"],
    ) -> InvalidFile:
        """Return the error for a YAML file whose values do not match `model`, with the lines of the faults.

        `forms` describes patterns. `at` leads to the validated value, and `skipped` further keys lead to the
        value of which `model` is the shape. `place` returns the path to a fault.
        """
        faults = []
        for details in error.errors(include_url=False, include_input=False):
            found = place(details)
            path: Path = (*at, *(part for part in found if part != "[key]"))
            line = self._line_of(path)
            if found[-1:] == ("[key]",):
                # What is no key may be a secret in the wrong place.
                path = path[:-1]
            if details["type"] == "extra_forbidden":
                of = _model_at(model, details["loc"][skipped:-1])
                # What is no key may be a secret in braces, or one without a space before it.
                path = path[:-1] if getattr(of, "hides_unknown_keys", False) else path
            expected = _expected(details, model, details["loc"][skipped:], forms)
            faults.append(FileFault(line, _pointer(path), expected))
        return self._refuse(sorted(faults, key=lambda fault: fault.line)[:MAX_FAULTS])

    def _line_of(self, path: Path) -> int:
        while path not in self._lines:
            path = path[:-1]
        return self._lines[path]

    def _check_bounds(self, text: str) -> None:
        """Refuse documents that would exceed the limits when expanded; reads one token after the other."""
        surrogate = _SURROGATE.search(text)
        if surrogate is not None:
            raise self._error_on_line(text.count("\n", 0, surrogate.start()) + 1, "expected text in UTF-8")
        if len(text.encode()) > MAX_FILE_BYTES:
            raise self._error_on_line(1, f"expected at most {MAX_FILE_BYTES} bytes")
        depth = nodes = 0
        try:
            for event in yaml.parse(text, Loader=_LOADER):
                line = _line(event)
                nodes += isinstance(event, yaml.NodeEvent)
                depth += isinstance(event, yaml.CollectionStartEvent)
                depth -= isinstance(event, yaml.CollectionEndEvent)
                if isinstance(event, yaml.AliasEvent):
                    # A value such as a password may begin with * or !, and is not quoted.
                    what = "expected no alias (*): write out what it stands for, or quote the value"
                    raise self._error_on_line(line, what)
                if getattr(event, "tag", None) is not None:
                    raise self._error_on_line(line, "expected no tag (!): quote a value that begins with !")
                if depth > MAX_DEPTH:
                    raise self._error_on_line(line, f"expected at most {MAX_DEPTH} levels")
                if nodes > MAX_NODES:
                    raise self._error_on_line(line, f"expected at most {MAX_NODES} keys and values")
        except yaml.YAMLError as error:
            raise self._unreadable(error, text) from None

    def _build(self, node: yaml.Node, path: Path) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._build_mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._build(item, (*path, place)) for place, item in self._placed(node, path)]
        # A date is kept as its text, because JSON has no dates.
        if node.tag == _TIMESTAMP:
            return node.value
        is_odd = node.tag in _NUMBERS and (":" in node.value or len(node.value) > MAX_NUMBER_CHARACTERS)
        try:
            # YAML 1.1 reads 1:30 as 90, and PyYAML needs quadratic time to compute it.
            value = None if is_odd else self._constructor.construct_object(node)
        except (ValueError, OverflowError, yaml.YAMLError):
            is_odd = True
            value = None
        if is_odd or (isinstance(value, int) and abs(value) > MAX_NUMBER):
            raise self._error_at(node, path, "expected an unambiguous value: write it in quotes")
        if isinstance(value, str) and _SURROGATE.search(value):
            raise self._error_at(node, path, "expected text without half of a surrogate pair")
        return value

    def _placed(self, node: yaml.SequenceNode, path: Path) -> Iterator[tuple[int, yaml.Node]]:
        for place, item in enumerate(node.value):
            self._lines[*path, place] = _line(item)
            yield place, item

    def _build_mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, value = self._build_pair(key_node, value_node, path)
            if key in values:
                raise self._error_at(key_node, (*path, key), "this key occurs twice in the same mapping")
            values[key] = value
        return values

    def _build_pair(self, key_node: yaml.Node, value_node: yaml.Node, path: Path) -> tuple[str, Any]:
        if key_node.tag != _TEXT:
            expected = "expected a key that is text: quote what looks like a number"
            raise self._error_at(key_node, path, expected)
        key = str(self._build(key_node, path))
        self._lines.setdefault((*path, key), _line(key_node))
        return key, self._build(value_node, (*path, key))

    def _error_at(self, node: yaml.Node, path: Path, expected: str) -> InvalidFile:
        shown = path[:2] if path[:1] == (self._secrets,) else path
        return self._refuse([FileFault(_line(node), _pointer(shown), expected)])

    def _error_on_line(self, line: int, expected: str) -> InvalidFile:
        return self._refuse([FileFault(line, "", expected)])

    def _unreadable(self, error: yaml.YAMLError, text: str) -> InvalidFile:
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            mark = error.problem_mark
            is_tab = text[mark.index : mark.index + 1] == "\t"
            # The parser without libyaml quotes an unknown tag, which may be a secret.
            stated = (error.problem or "").partition(" handle ")[0]
            problem = "spaces for indentation, not a tab" if is_tab else stated
            return self._error_on_line(mark.line + 1, f"expected YAML: {problem}")
        position = getattr(error, "position", 0)
        line = text.count("\n", 0, position) + 1
        return self._error_on_line(line, "expected YAML: no control characters")


def _expected(details: ErrorDetails, model: type[BaseModel], path: Path, forms: Mapping[str, str]) -> str:
    """Return pydantic's message in terms of YAML."""
    match details["type"]:
        case "extra_forbidden":
            return f"no such key; expected one of {', '.join(_model_at(model, path[:-1]).model_fields)}"
        case "missing":
            return "expected this key"
        case "model_type" | "dict_type":
            return "expected a mapping"
        case "tuple_type" | "list_type":
            return "expected a list"
        case _:
            words = known_expectation(details, forms)
            return details["msg"] if words is None else f"expected {words}"


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel]:
    """Return the model at a path of another model, through lists, mappings and optional members."""
    is_key = False
    for part in path:
        if is_key or not isinstance(part, str):
            is_key = False
            continue
        annotation = model.model_fields[part].annotation
        model = next(_models_in(annotation))
        # The next part is a key that the author of the file has chosen.
        is_key = get_origin(annotation) is dict
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _line(part: yaml.Event | yaml.Node) -> int:
    """Return the line on which something begins, from 1."""
    return 1 if part.start_mark is None else part.start_mark.line + 1


def _pointer(path: Path) -> str:
    return json_pointer(*(_shown(part) if isinstance(part, str) else part for part in path))


def _shown(text: str) -> str:
    """Return a text of the file for a message: short, and on one line."""
    shown = text[:MAX_SHOWN_CHARACTERS]
    return shown if shown.isprintable() else ascii(shown)
