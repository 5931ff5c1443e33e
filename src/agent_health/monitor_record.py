"""How is it shown whether the registry trusts its own eyes? (protocol 4, "The monitor itself may be sick")

What the registry answers and its client reads.
"""

from pydantic import BaseModel

from agent_health.document import Time
from agent_health.monitor_health import HoldCause, MonitorState


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
