"""What do many probes of one agent add up to?

A small value that is stored beside the agent's record and grows with every observation: it
holds what `verdict` judges by and what a view shows, and of its history the half hour that is
running (`agent_history`). Times are seconds since the epoch.
"""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from agent_health.agent_history import OpenSlot, gathered, half_hour_of
from agent_health.clock_ahead import lies_ahead
from agent_health.decision import stale_after_seconds
from agent_health.document import MAX_AGENT_ID_CHARS, Count, HealthStatus, Quantity, Ratio
from agent_health.observation import DocumentSeen, LayerResult, Observation

MAX_INTERACTIONS: Final = 20
"""How many measured interactions are remembered."""
MAX_FAILURES_REMEMBERED: Final = 2
"""Of measured failures in a row so many are remembered as interactions.

What follows them is one silence, which is judged apart: an agent that returns from a long one and
calls itself healthy is not contradicted by having been away. One that is away every other time is.
"""
MAX_IN_ROW: Final = 1000
"""Rows are counted up to here: nothing asks for more."""

_Moment = Annotated[float, Field(allow_inf_nan=False)]
_Row = Annotated[int, Field(ge=0, le=MAX_IN_ROW)]


class _Stored(BaseModel):
    """What is kept as JSON in a row of the database: immutable, nothing unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class LastResult(_Stored):
    """How a layer answered the last time it was asked."""

    layer: LayerResult
    observed_at_s: _Moment


class LastDocument(_Stored):
    """The health document that was read last, and until when it says something."""

    status: HealthStatus
    timestamp_s: _Moment
    """When the agent computed it, by the agent's clock."""
    observed_at_s: _Moment
    fresh_until_s: _Moment
    """Later it is stale (`decision.is_stale`), by our clock."""
    is_stale: bool
    """Whether it already was when it was seen."""
    response_ratio: Ratio | None
    sample_count: Count | None
    error_ratio: Ratio | None = None
    latency_p50_ms: Quantity | None = None
    latency_p99_ms: Quantity | None


class Observed(_Stored):
    """What is known of one agent from outside; `Observed()` is nothing."""

    last_observed_at_s: _Moment | None = None
    """The time that the last observation carries, by its prober's clock: later ones only are taken."""
    last_sign_of_life_at_s: _Moment | None = None
    life_run_began_at_s: _Moment | None = None
    """The first sign of life since the last measured failure; None if none came since."""
    failures_in_row: _Row = 0
    """Measured failures since the last sign of life, counted up to MAX_IN_ROW."""
    recent_interactions: Annotated[str, Field(max_length=MAX_INTERACTIONS, pattern="^[01]*$")] = ""
    """The last measured interactions, one per observation, oldest first: 1 answered, 0 failed.

    An interaction is the message where one was sent, else the request to the declared interface.
    """
    discovery: LastResult | None = None
    transport: LastResult | None = None
    readiness: LastResult | None = None
    message: LastResult | None = None
    document: LastDocument | None = None
    unhealthy_documents_in_row: _Row = 0
    """Documents in a row that say unhealthy, counted once per `timestamp`; up to MAX_IN_ROW."""
    last_unhealthy_timestamp_s: _Moment | None = None
    """The `timestamp` of the last one counted; None if the row is empty."""
    reported_agent_id: Annotated[str, Field(min_length=1, max_length=MAX_AGENT_ID_CHARS)] | None = None
    """What the agent called itself last."""
    slot: OpenSlot | None = None
    """The half hour of the last observation."""

    def to_json(self) -> str:
        """Return compact JSON without what is not known."""
        return self.model_dump_json(exclude_defaults=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Observed":
        """Read what `to_json` wrote; pydantic's ValidationError if it is something else."""
        return cls.model_validate_json(text)


def fold(observed: Observed | None, observation: Observation, received_at_s: float) -> Observed:
    """Return what is known after one more observation, which we received at `received_at_s`.

    Observations count in the order of their own times. One that is not later than the last (late,
    or delivered twice) changes nothing: it can neither end a row nor be counted again. One that
    lies more than 300 s ahead of us changes nothing either: a clock so wrong would shut out every
    observation until we get there. What lies ahead by less counts as seen when we received it.

    A layer that was not measured keeps its last result; an observation without any measured
    layer is remembered by its time alone.
    """
    observed = observed or Observed()
    claimed_s = observation.observed_at.timestamp()
    if is_late(claimed_s, observed.last_observed_at_s, received_at_s) or lies_ahead(claimed_s, received_at_s):
        return observed
    at_s = min(claimed_s, received_at_s)
    life = _life(observed, observation, at_s)
    failures_in_row = life.get("failures_in_row", observed.failures_in_row)
    return observed.model_copy(
        update={
            "last_observed_at_s": claimed_s,
            "slot": gathered(observed.slot, observation, at_s),
            **_layers(observation, at_s),
            **life,
            **_interaction(observed, observation, failures_in_row),
            **_document(observed, observation, at_s),
        }
    )


def is_late(claimed_s: float, last_s: float | None, now_s: float) -> bool:
    """Whether an observation is not later than the last one that counted, None for none.

    A last one that lies ahead of us was taken in before our clock was set back: nothing is late beside it.
    """
    return last_s is not None and claimed_s <= last_s and not lies_ahead(last_s, now_s)


def health_of(observed: Observed | None, now_s: float) -> tuple[HealthStatus, float | None]:
    """Return the agent's health as it says itself, and the last moment at which that holds.

    `unknown` without a document and once it is stale: computed more than 900 s ago, or more than
    twice its max-age. The moment is None where time alone changes nothing.
    """
    document = None if observed is None else observed.document
    if document is None or document.is_stale or now_s > document.fresh_until_s:
        return HealthStatus.UNKNOWN, None
    return document.status, document.fresh_until_s


def moved_back(observed: Observed, by_s: float, now_s: float) -> Observed:
    """Return the same with what lies ahead of now moved by `by_s`, below 0: our clock was set back."""

    def moved_s(at_s: float | None) -> float | None:
        return at_s + by_s if at_s is not None and at_s > now_s else at_s

    names = ("last_observed_at_s", "last_sign_of_life_at_s", "life_run_began_at_s")
    update: dict[str, object] = {name: moved_s(getattr(observed, name)) for name in names}
    document = observed.document
    if document is not None and document.observed_at_s > now_s:
        times_s = {
            "observed_at_s": document.observed_at_s + by_s,
            "fresh_until_s": document.fresh_until_s + by_s,
        }
        update["document"] = document.model_copy(update=times_s)
    if observed.slot is not None:
        number = min(observed.slot.number, half_hour_of(now_s))
        update["slot"] = observed.slot.model_copy(update={"number": number})
    return observed.model_copy(update=update)


# Each of these returns what an observation changes, by the names of `Observed`.


def _layers(observation: Observation, at_s: float) -> dict[str, Any]:
    layers = {
        "discovery": observation.discovery,
        "transport": observation.transport,
        "readiness": observation.readiness,
        "message": observation.message,
    }
    changed: dict[str, Any] = {
        name: LastResult(layer=layer, observed_at_s=at_s)
        for name, layer in layers.items()
        if layer is not None and layer.is_measured
    }
    if observation.reported_agent_id is not None:
        changed["reported_agent_id"] = observation.reported_agent_id
    return changed


def _life(observed: Observed, observation: Observation, at_s: float) -> dict[str, Any]:
    if observation.is_sign_of_life:
        # Never backwards, also if our own clock was set back between two observations.
        last_s, began_s = observed.last_sign_of_life_at_s, observed.life_run_began_at_s
        at_s = at_s if last_s is None else max(at_s, last_s)
        return {
            "last_sign_of_life_at_s": at_s,
            "life_run_began_at_s": at_s if began_s is None else began_s,
            "failures_in_row": 0,
        }
    if observation.is_measured_failure:
        row = min(observed.failures_in_row + 1, MAX_IN_ROW)
        return {"failures_in_row": row, "life_run_began_at_s": None}
    return {}


def _interaction(observed: Observed, observation: Observation, failures_in_row: int) -> dict[str, Any]:
    """Remember the message if one was sent, even if it was not measured, else the transport."""
    asked = observation.transport if observation.message is None else observation.message
    is_one_silence = failures_in_row > MAX_FAILURES_REMEMBERED
    if asked is None or not asked.is_measured or is_one_silence:
        return {}
    recent = observed.recent_interactions + ("1" if asked.has_answered else "0")
    return {"recent_interactions": recent[-MAX_INTERACTIONS:]}


def _document(observed: Observed, observation: Observation, at_s: float) -> dict[str, Any]:
    """Hold the document, and count it if it is fresh: a stale one never adds to a row, or ends it."""
    document = observation.document
    if document is None:
        return {}
    changed: dict[str, Any] = {"document": _last_document(document, observation, at_s)}
    timestamp_s = document.timestamp.timestamp()
    if not document.is_stale and document.status is not HealthStatus.UNHEALTHY:
        changed |= {"unhealthy_documents_in_row": 0, "last_unhealthy_timestamp_s": None}
    elif not document.is_stale and timestamp_s != observed.last_unhealthy_timestamp_s:
        row = min(observed.unhealthy_documents_in_row + 1, MAX_IN_ROW)
        changed |= {"unhealthy_documents_in_row": row, "last_unhealthy_timestamp_s": timestamp_s}
    return changed


def _last_document(document: DocumentSeen, observation: Observation, at_s: float) -> LastDocument:
    age_s = document.age_s
    if age_s is None:
        age_s = (observation.observed_at - document.timestamp).total_seconds()
    # A document from the near future is as old as one just computed: nobody stays fresh for longer.
    computed_at_s = at_s - max(0.0, age_s)
    return LastDocument(
        status=document.status,
        timestamp_s=document.timestamp.timestamp(),
        observed_at_s=at_s,
        fresh_until_s=computed_at_s + stale_after_seconds(document.max_age_s),
        is_stale=document.is_stale,
        response_ratio=document.response_ratio,
        sample_count=document.sample_count,
        error_ratio=document.error_ratio,
        latency_p50_ms=document.latency_p50_ms,
        latency_p99_ms=document.latency_p99_ms,
    )
