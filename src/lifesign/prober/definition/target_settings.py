"""Settings of single targets in a probe definition, and the layers that a probe checks."""

from collections.abc import Iterable
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from lifesign.prober.definition.values import HealthPath, Switch, Target, take_unique

MAX_PATHS: Final = 8
MAX_MESSAGE_CHARS: Final = 4096


class DefinitionMapping(BaseModel):
    """A mapping of a definition. Unknown members are refused: a misspelt limit must not be ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class MessageSettings(DefinitionMapping):
    """A real message to every agent: it may cost its owner money. Only ask those who agreed."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_MESSAGE_CHARS)]
    """Text of the message."""


class LayerSettings(DefinitionMapping):
    """Layers that a probe checks."""

    card: Switch = True
    """Its card, at both well-known places."""
    transport: Switch = True
    """Whether the interface that the card declares answers at all. The probe sends no message to it."""
    health: Switch = True
    """Its health document, where it is announced or at the well-known place."""
    message: MessageSettings | None = None
    """A real message; null sends none."""
    paths: Annotated[
        tuple[HealthPath, ...],
        Field(max_length=MAX_PATHS),
        AfterValidator(take_unique),
    ] = ()
    """More GETs, such as /ping: shown, they decide nothing."""

    @model_validator(mode="after")
    def _require_a_layer(self) -> Self:
        if not (self.card or self.transport or self.health or self.message):
            raise PydanticCustomError("nothing_asked", "expected card or health to be true: nothing is asked")
        if not self.card and (self.transport or self.message):
            raise PydanticCustomError(
                "no_card", "transport and message need card: true, for the card says where the agent listens"
            )
        return self


class TargetSettings(DefinitionMapping):
    """One target with settings of its own. They apply to its URL wherever else the URL is listed."""

    url: Target
    """URL or domain of the agent."""
    ask: LayerSettings | None = None
    """Layers for this target. Replaces the definition's `ask` as a whole; null: that of the definition."""

    @property
    def has_settings(self) -> bool:
        """Whether anything but the URL is set."""
        fields = type(self).model_fields.items()
        return any(getattr(self, name) != field.default for name, field in fields if name != "url")


def spelled_out(given: Any) -> Any:
    """Return a URL alone as the mapping that it stands for."""
    return given if isinstance(given, dict | BaseModel) else {"url": given}


TargetItem = Annotated[
    TargetSettings, BeforeValidator(spelled_out, json_schema_input_type=Target | TargetSettings)
]
"""A URL alone, or a mapping."""


def merge_targets(targets: Iterable[TargetSettings]) -> tuple[TargetSettings, ...]:
    """Return each URL once, in the order of first mention, with its settings.

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
