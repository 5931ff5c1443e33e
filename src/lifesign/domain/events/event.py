"""Events before they are appended to the log."""

from typing import Self

from pydantic import (
    BaseModel,
    ConfigDict,
    model_validator,
)
from pydantic_core import PydanticCustomError

from lifesign.domain.events.event_type import PAYLOADS, EventType
from lifesign.domain.events.payload_fields import Actor, Label, Payload


class EventDraft(BaseModel):
    """An event before it has a position in the chain."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    type: EventType
    actor: Actor
    payload: Payload
    agent_id: Label | None = None
    """Agent of the event, by which it is found and erased; the same as `chain.agent_of`."""
    intent_id: Label | None = None

    @model_validator(mode="after")
    def _check_payload_type(self) -> Self:
        if type(self.payload) is not PAYLOADS[self.type]:
            raise PydanticCustomError("wrong_payload", "expected a payload of this event type")
        return self
