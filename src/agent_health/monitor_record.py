"""How is it shown whether the registry trusts its own eyes? (protocol 4, "The monitor itself may be sick")

What the registry takes and answers, for its client too.
"""

from typing import Annotated

from pydantic import BaseModel, Field, StrictBool

from agent_health.agent_record import Body
from agent_health.document import Time
from agent_health.monitor_health import MAX_ILLNESS_SECONDS, MAX_WHY_CHARACTERS, HoldCause, MonitorState
from agent_health.shard_record import WorkerName


class IllnessReport(Body):
    """The body of `POST /api/v1/monitor/illness`: what a prober says of itself."""

    ill: StrictBool
    why: Annotated[str, Field(max_length=MAX_WHY_CHARACTERS)] = ""
    """For people."""
    seconds: Annotated[float, Field(gt=0, le=MAX_ILLNESS_SECONDS, allow_inf_nan=False, strict=True)] = 60.0
    """How long it counts; a prober repeats itself while it is ill."""
    worker: WorkerName | None = None
    """Which of the workers that show this key; absent: the key's one and only."""


class ShownIllness(BaseModel):
    """A prober that calls itself ill."""

    prober: str
    until: Time
    why: str


class ShownSpan(BaseModel):
    """Time that is nobody's silence."""

    begin: Time
    end: Time


class MonitorRecord(BaseModel):
    """What is known of the monitor."""

    state: MonitorState
    since: Time
    held_because: HoldCause | None = None
    exits: int
    """How many silence took down in this cadence; while held, how many wait."""
    limit: int
    """How many in one cadence are believed."""
    baseline: float
    """The mean number per cadence when all is well."""
    illnesses: list[ShownIllness]
    excused: list[ShownSpan]
    """Our own downtime, jumps of the clock, and holds that are over: the latest of each."""
    swept_at: Time | None = None
    """When a sweep last ran; absent before the first one."""
