"""Which agents does a workflow file declare? (RFC-0016 12)

Only the section `agents` is read; whatever else the file holds is somebody else's. The file is YAML 1.1
without aliases and tags: a few lines of aliases unfold to gigabytes, and nothing here needs either.
"""

import math
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError
from yaml.constructor import SafeConstructor

from agent_health.agent_record import (
    Body,
    Capabilities,
    HeartbeatConfig,
    Load,
    Metadata,
    Name,
    RoleId,
    Seconds,
    Url,
)
from agent_health.errors import InvalidWorkflow, WorkflowFault
from agent_health.finding import json_pointer

MAX_WORKFLOW_BYTES = 1_048_576
MAX_NODES = 100_000
"""Keys and values in one file, read or not."""
MAX_DEPTH = 32
MAX_AGENTS = 1_000
MAX_INSTANCES = 1_000_000
MAX_FAULTS = 20
"""Of those that one error names."""
MAX_SHOWN_CHARACTERS = 80
"""Of a key, a tag or an anchor in a message."""

Path = tuple[str | int, ...]

# Ten times as fast as the other one; a build of PyYAML without libyaml has none.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT = "tag:yaml.org,2002:str"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_SURROGATE = re.compile("[\ud800-\udfff]")


def _refuse_what_json_lacks(value: object) -> object:
    """Metadata travels as JSON; keys are text already, and times are left as they are written."""
    match value:
        case dict():
            for inner in value.values():
                _refuse_what_json_lacks(inner)
        case list():
            for inner in value:
                _refuse_what_json_lacks(inner)
        case float() if not math.isfinite(value):
            raise PydanticCustomError("not_json", "expected what JSON can say: no .inf, no .nan")
        case _:
            pass
    return value


class DeclaredCapacity(Body):
    """How much one instance can do at once. Advisory."""

    max_concurrent_tasks: Load | None = None


class PoolSize(Body):
    """How many instances there should be. Advisory: whoever scales may read it, nobody enforces it."""

    min_instances: Annotated[int, Field(ge=0, le=MAX_INSTANCES, strict=True)] | None = None
    max_instances: Annotated[int, Field(ge=0, le=MAX_INSTANCES, strict=True)] | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        least, most = self.min_instances, self.max_instances
        if least is not None and most is not None and least > most:
            raise PydanticCustomError("pool_out_of_order", "min_instances must be at most max_instances")
        return self


class AgentDeclaration(Body):
    """One entry of `agents`: what every instance of it says when it registers, and its pool."""

    role_id: RoleId
    """If it is not written, the key under which the entry stands."""
    name: Name | None = None
    capabilities: Capabilities = Field(default_factory=list)
    capacity: DeclaredCapacity = DeclaredCapacity()
    heartbeat: HeartbeatConfig | None = None
    """None: the registry's defaults. Of those that are not written, RFC-0016's defaults."""
    drain_timeout_seconds: Seconds | None = None
    pool: PoolSize | None = None
    metadata: Annotated[Metadata, BeforeValidator(_refuse_what_json_lacks)] | None = None
    endpoint: Url | None = None
    card_url: Url | None = None

    def registration(self, agent_id: str | None = None) -> dict[str, Any]:
        """Return the body of `POST /api/v1/agents` for one instance (RFC-0016 3.1).

        Without an `agent_id` the registry gives it one. What was not declared is left out.
        """
        heartbeat = {} if self.heartbeat is None else _whole(self.heartbeat.model_dump())
        body = {
            "agent_id": agent_id,
            "role_id": self.role_id,
            "name": self.name,
            "capabilities": list(self.capabilities),
            "capacity": self.capacity.model_dump(exclude_none=True),
            "endpoint": self.endpoint,
            "card_url": self.card_url,
            "heartbeat_config": heartbeat,
            **_whole({"drain_timeout_seconds": self.drain_timeout_seconds}),
            "metadata": deepcopy(self.metadata),
        }
        return {name: value for name, value in body.items() if value not in (None, {}, [])}


def _whole(seconds: Mapping[str, float | None]) -> dict[str, float | None]:
    """Write whole seconds without a fraction: the members are integers to RFC-0016."""
    return {
        name: int(value) if value is not None and value % 1 == 0 else value for name, value in seconds.items()
    }


_AGENTS = TypeAdapter(dict[Name, AgentDeclaration])
# Whose keys may stand at which place of an entry.
_MODELS: Mapping[Path, type[BaseModel]] = MappingProxyType(
    {
        (): AgentDeclaration,
        ("capacity",): DeclaredCapacity,
        ("heartbeat",): HeartbeatConfig,
        ("pool",): PoolSize,
    }
)

# What stands behind the patterns, in words.
_FORMS: Mapping[str | int, str] = MappingProxyType(
    {
        "[key]": "a key without control characters",
        "role_id": "1 to 128 letters, digits and . _ ~ : -",
        "name": "text without control characters",
        "capabilities": "text without spaces and commas",
        "endpoint": "an http or https URL",
        "card_url": "an http or https URL",
    }
)


@dataclass(frozen=True, slots=True)
class Workflow:
    """What a workflow file says about agents."""

    agents: Mapping[str, AgentDeclaration]
    """By the key under which each stands, in the order of the file."""


def read_workflow(text: str) -> Workflow:
    """Read the agents that a workflow file declares; InvalidWorkflow says all that is wrong, and where.

    A file without the key `agents` is refused: it is more likely a wrong file than an empty fleet.
    """
    _refuse_what_is_too_much(text)
    try:
        document = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise _unreadable(error, text) from None
    given = _GivenAgents(document)
    try:
        agents = _AGENTS.validate_python(given.agents)
    except ValidationError as error:
        faults = (given.fault(details) for details in error.errors(include_url=False, include_input=False))
        raise InvalidWorkflow(sorted(faults, key=lambda fault: fault.line)[:MAX_FAULTS]) from None
    return Workflow(MappingProxyType(agents))


def _refuse_what_is_too_much(text: str) -> None:
    """Raise InvalidWorkflow for what must not be unfolded; looks at one token after the other."""
    surrogate = _SURROGATE.search(text)
    if surrogate is not None:
        raise _refused(text.count("\n", 0, surrogate.start()) + 1, "expected text in UTF-8")
    if len(text.encode()) > MAX_WORKFLOW_BYTES:
        raise _refused(1, f"expected at most {MAX_WORKFLOW_BYTES} bytes")
    depth = nodes = 0
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            line = _line(event)
            nodes += isinstance(event, yaml.NodeEvent)
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent):
                raise _refused(
                    line, f"expected no alias: write out what *{_shown(str(event.anchor))} stands for"
                )
            tag = getattr(event, "tag", None)
            if tag is not None:
                raise _refused(line, f"expected no tag such as {_shown(tag)}")
            if depth > MAX_DEPTH:
                raise _refused(line, f"expected at most {MAX_DEPTH} levels")
            if nodes > MAX_NODES:
                raise _refused(line, f"expected at most {MAX_NODES} keys and values")
    except yaml.YAMLError as error:
        raise _unreadable(error, text) from None


class _GivenAgents:
    """The section `agents` as plain values, and the line on which each of them stands."""

    def __init__(self, document: yaml.Node | None) -> None:
        self._lines: dict[Path, int] = {(): 1}
        self._constructor = SafeConstructor()
        if not isinstance(document, yaml.MappingNode):
            raise _refused(1, "expected a mapping with the key agents")
        sections = [pair for pair in document.value if pair[0].value == "agents"]
        if not sections:
            raise _refused(1, "expected the key agents")
        if len(sections) > 1:
            raise self._refused(sections[1][0], ("agents",), "this key stands here a second time")
        key_node, value_node = sections[0]
        section = self._take_pair(key_node, value_node, ())[1]
        if not isinstance(section, dict) or len(section) > MAX_AGENTS:
            raise self._refused(key_node, ("agents",), f"expected a mapping of at most {MAX_AGENTS} agents")
        self.agents = {
            name: {"role_id": name, **entry} if isinstance(entry, dict) else entry
            for name, entry in section.items()
        }

    def fault(self, details: ErrorDetails) -> WorkflowFault:
        """Return where something is wrong, and what was expected there."""
        path: Path = ("agents", *(part for part in details["loc"] if part != "[key]"))
        place = path
        while place not in self._lines:
            place = place[:-1]
        return WorkflowFault(self._lines[place], _pointer(path), _expected(details))

    def _take(self, node: yaml.Node, path: Path) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._take_mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._take(item, (*path, place)) for place, item in self._placed(node, path)]
        # A date is as good as its text, and JSON knows none.
        if node.tag == _TIMESTAMP:
            return node.value
        try:
            value = self._constructor.construct_object(node)
        except (ValueError, yaml.YAMLError):
            raise self._refused(
                node, path, "expected a value that means what it looks like: quote it"
            ) from None
        if isinstance(value, str) and _SURROGATE.search(value):
            raise self._refused(node, path, "expected text without half a character")
        return value

    def _placed(self, node: yaml.SequenceNode, path: Path) -> Iterator[tuple[int, yaml.Node]]:
        for place, item in enumerate(node.value):
            self._lines[*path, place] = _line(item)
            yield place, item

    def _take_mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, value = self._take_pair(key_node, value_node, path)
            if key in values:
                raise self._refused(key_node, (*path, key), "this key stands here a second time")
            values[key] = value
        return values

    def _take_pair(self, key_node: yaml.Node, value_node: yaml.Node, path: Path) -> tuple[str, Any]:
        if key_node.tag != _TEXT:
            raise self._refused(key_node, path, "expected a key that is text: quote what looks like a number")
        key = str(self._take(key_node, path))
        self._lines.setdefault((*path, key), _line(key_node))
        return key, self._take(value_node, (*path, key))

    def _refused(self, node: yaml.Node, path: Path, expected: str) -> InvalidWorkflow:
        return _refused(_line(node), expected, _pointer(path))


def _expected(details: ErrorDetails) -> str:
    """Return pydantic's complaint in the words of somebody who writes YAML."""
    match details["type"]:
        case "extra_forbidden":
            known = ", ".join(_MODELS[details["loc"][1:-1]].model_fields)
            return f"no such key; expected one of {known}"
        case "model_type" | "dict_type":
            return "expected a mapping"
        case "string_pattern_mismatch":
            fields = [part for part in details["loc"] if part in _FORMS]
            return f"expected {_FORMS[fields[-1]]}"
        case _:
            message = details["msg"].replace("Input should be ", "expected ", 1)
            return message[:1].lower() + message[1:]


def _line(part: yaml.Event | yaml.Node) -> int:
    """Return the line on which something begins, from 1."""
    return 1 if part.start_mark is None else part.start_mark.line + 1


def _pointer(path: Path) -> str:
    return json_pointer(*(_shown(part) if isinstance(part, str) else part for part in path))


def _shown(text: str) -> str:
    """Return a text of the file as it may stand in a message: short, and on one line."""
    shown = text[:MAX_SHOWN_CHARACTERS]
    return shown if shown.isprintable() else ascii(shown)


def _unreadable(error: yaml.YAMLError, text: str) -> InvalidWorkflow:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return _refused(error.problem_mark.line + 1, f"expected YAML: {error.problem}")
    position = getattr(error, "position", 0)
    return _refused(text.count("\n", 0, position) + 1, "expected YAML: no control characters")


def _refused(line: int, expected: str, path: str = "") -> InvalidWorkflow:
    return InvalidWorkflow([WorkflowFault(line, path, expected)])
