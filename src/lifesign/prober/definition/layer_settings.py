"""Layers that a probe checks, in a probe definition."""

from typing import Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from lifesign.prober.definition.values import HealthPath, Switch, take_unique

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
