"""Settings of single targets in a probe definition."""

from collections.abc import Iterable
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, Field, field_validator
from pydantic_core import PydanticCustomError

from lifesign.domain.observation.assertion import MAX_ASSERTIONS, Assertion
from lifesign.domain.targets.target import TargetKind
from lifesign.prober.definition.assertion_settings import LAYERS, AssertionSettings
from lifesign.prober.definition.layer_settings import MAX_PATHS, DefinitionMapping, LayerSettings
from lifesign.prober.definition.values import Target, drop_duplicates

_KEYS_OF_ASK: Final = MappingProxyType({"tool": "call"})
"""Keys of `ask` that differ from the name of the answer in an assertion."""


class TargetSettings(DefinitionMapping):
    """One target with its own settings. They apply wherever its URL is listed."""

    url: Target
    """URL or domain of the agent."""
    kind: TargetKind | None = None
    """`a2a` or `mcp`; null: looks for a card, and without one sends `server/discover`."""
    ask: LayerSettings | None = None
    """Layers for this target. Replaces the definition's `ask` as a whole; null: that of the definition."""

    assertions: Annotated[tuple[AssertionSettings, ...], Field(max_length=MAX_ASSERTIONS)] = ()
    """Checks of the target's answers."""

    @field_validator("assertions")
    @classmethod
    def _bound_checks(cls, assertions: tuple[AssertionSettings, ...]) -> tuple[AssertionSettings, ...]:
        if sum(len(list(each.assertions)) for each in assertions) > MAX_ASSERTIONS:
            raise PydanticCustomError(
                "too_many_checks", "expected {most} checks at most", {"most": MAX_ASSERTIONS}
            )
        return assertions

    @property
    def checks(self) -> tuple[Assertion, ...]:
        """All assertions of the target, in their order."""
        return tuple(check for each in self.assertions for check in each.assertions)

    @property
    def has_settings(self) -> bool:
        """Whether the target has any setting besides its URL."""
        fields = type(self).model_fields.items()
        return any(getattr(self, name) != field.default for name, field in fields if name != "url")


def spelled_out(given: Any) -> Any:
    """Return a target as a mapping, even if it was written as a URL only."""
    return given if isinstance(given, dict | BaseModel) else {"url": given}


TargetItem = Annotated[
    TargetSettings, BeforeValidator(spelled_out, json_schema_input_type=Target | TargetSettings)
]
"""A URL alone, or a mapping."""


def merge_targets(targets: Iterable[TargetSettings]) -> tuple[TargetSettings, ...]:
    """Return each URL once, with its settings, in the order in which they are first named.

    Raise PydanticCustomError if a URL has two different settings.
    """
    merged: dict[str, TargetSettings] = {}
    for target in targets:
        known = merged.setdefault(target.url, target)
        if not known.has_settings:
            merged[target.url] = target
        elif target.has_settings and target != known:
            raise PydanticCustomError(
                "target_twice", "{url} is listed twice with different settings", {"url": target.url}
            )
    return tuple(merged.values())


def require_answers(target: TargetSettings, default: LayerSettings) -> None:
    """Raise PydanticCustomError for assertions about answers that no probe requests, or too many paths."""
    settings = target.ask or default
    if settings.call is not None and target.kind is TargetKind.A2A:
        raise PydanticCustomError(
            "call_of_an_agent",
            "{url}: `call` needs `kind: mcp` or no `kind`: only MCP servers have tools",
            {"url": target.url},
        )
    is_mcp = target.kind is TargetKind.MCP
    asks_own_message = target.ask is not None and target.ask.message is not None
    if is_mcp and (asks_own_message or any(each.of == "message" for each in target.assertions)):
        raise PydanticCustomError(
            "message_to_a_server",
            "{url}: `message` needs `kind: a2a` or no `kind`: MCP servers accept none",
            {"url": target.url},
        )
    for assertion in target.assertions:
        of = assertion.of
        key = _KEYS_OF_ASK.get(of, of)
        if of in LAYERS and not getattr(settings, key):
            raise PydanticCustomError(
                "not_asked",
                "{url}: an assertion about {of} needs `{key}` in `ask`: otherwise no answer is requested",
                {"url": target.url, "of": of, "key": key},
            )
    if len(paths_of(target, settings)) > MAX_PATHS:
        raise PydanticCustomError(
            "too_many_paths",
            "{url}: expected {most} paths at most, in ask and assertions",
            {"url": target.url, "most": MAX_PATHS},
        )


def paths_of(target: TargetSettings | None, settings: LayerSettings) -> tuple[str, ...]:
    """Return all paths that a probe of a target requests: those in `ask`, then those of assertions."""
    named = () if target is None else (each.of for each in target.assertions if each.of not in LAYERS)
    return drop_duplicates((*settings.paths, *named))
