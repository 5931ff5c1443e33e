"""Intervals, time limits and limits of load of a probe definition."""

from typing import Annotated, Final, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from lifesign.domain.a2a.agent_card import MAX_CARD_BYTES
from lifesign.domain.health.document_reader import MAX_DOCUMENT_BYTES
from lifesign.domain.models.census import Deadlines
from lifesign.domain.probing.cadence import Cadence
from lifesign.prober.definition.layer_settings import DefinitionMapping
from lifesign.prober.definition.values import PhaseSeconds, SpanSeconds, Switch

MIN_INTERVAL_SECONDS: Final = 300
"""Draft 7: more frequent probes need the consent of the target's operator."""
MIN_CONFIRM_SECONDS: Final = 30
MIN_CARD_SECONDS: Final = 3600
MAX_INTERVAL_SECONDS: Final = 86_400
MAX_TARGETS: Final = 2_000_000
MAX_CONCURRENCY: Final = 10_000


class CadenceSettings(DefinitionMapping):
    """Intervals between probes of a target."""

    allow_fast_cadence: Switch = False
    """For your own agents and for tests: removes the minimum values of the other settings."""
    interval_seconds: Annotated[float, Field(strict=True, ge=0.05, le=MAX_INTERVAL_SECONDS)] = 300
    """Time from one probe to the next; 300 or more."""
    confirm_after_seconds: SpanSeconds = 30
    """Delay before a recovery is confirmed; 30 or more. A failure is confirmed at once, by a witness."""
    card_every_seconds: SpanSeconds = 86_400
    """Interval at which a known card is requested again, by conditional GET; 3600 or more."""
    max_backoff_seconds: SpanSeconds = 86_400
    """The longest wait for a target that keeps failing or asks us to slow down."""

    @field_validator("interval_seconds", "confirm_after_seconds", "card_every_seconds")
    @classmethod
    def _check_minimum(cls, value: float, info: ValidationInfo) -> float:
        least = _LEAST_SECONDS[info.field_name or ""]
        if value < least and not info.data.get("allow_fast_cadence", False):
            raise PydanticCustomError(
                "too_fast",
                (
                    "expected {least} or more; for your own agents, less is possible with "
                    "allow_fast_cadence: true"
                ),
                {"least": least},
            )
        return value

    @model_validator(mode="after")
    def _check_backoff(self) -> Self:
        if self.max_backoff_seconds < self.interval_seconds:
            raise PydanticCustomError(
                "backoff_below_interval", "expected max_backoff_seconds to be at least interval_seconds"
            )
        return self

    def policy(self) -> Cadence:
        """Return the intervals in the form that the rules of `cadence` use."""
        return Cadence(
            interval_s=self.interval_seconds,
            confirm_after_s=self.confirm_after_seconds,
            card_every_s=self.card_every_seconds,
            max_backoff_s=self.max_backoff_seconds,
        )


_LEAST_SECONDS: Final = {
    "interval_seconds": MIN_INTERVAL_SECONDS,
    "confirm_after_seconds": MIN_CONFIRM_SECONDS,
    "card_every_seconds": MIN_CARD_SECONDS,
}


class Timeouts(DefinitionMapping):
    """Time limits of the parts of a request, and of the whole request (`total_seconds`)."""

    dns_seconds: PhaseSeconds = 5
    """Time limit for the host name's lookup."""
    connect_seconds: PhaseSeconds = 5
    """Time limit for the TCP connection."""
    tls_seconds: PhaseSeconds = 5
    """Until it is encrypted."""
    first_byte_seconds: PhaseSeconds = 10
    """Time limit from the request's last byte to the answer's first."""
    total_seconds: PhaseSeconds = 20
    """Time limit for the whole request, redirects included. A probe takes at most three times as long."""

    @property
    def shortest_s(self) -> float:
        """The shortest of all limits."""
        return min(
            self.dns_seconds,
            self.connect_seconds,
            self.tls_seconds,
            self.first_byte_seconds,
            self.total_seconds,
        )

    @property
    def deadlines(self) -> Deadlines:
        """Return the time limits in the form that a census reports."""
        return Deadlines(
            connect_seconds=self.connect_seconds,
            first_byte_seconds=self.first_byte_seconds,
            total_seconds=self.total_seconds,
        )

    @classmethod
    def within(cls, total_seconds: float | None) -> dict[str, float]:
        """Return the limits to change so that a request ends within `total_seconds` (None: no change)."""
        if total_seconds is None:
            return {}
        begun = {"first_byte_seconds": total_seconds} if total_seconds > cls().first_byte_seconds else {}
        return {"total_seconds": total_seconds, **begun}


class Limits(DefinitionMapping):
    """Limits of how much happens at the same time, and of sizes."""

    concurrency: Annotated[int, Field(strict=True, ge=1, le=MAX_CONCURRENCY)] = 500
    """Probes at once in one process. Each takes a file descriptor, and at worst one body of memory."""
    per_host: Annotated[int, Field(strict=True, ge=1, le=MAX_CONCURRENCY)] = 2
    """Probes of one host at once."""
    per_address: Annotated[int, Field(strict=True, ge=1, le=MAX_CONCURRENCY)] = 20
    """Probes of one address at once: thousands of agents may stand behind one."""
    host_requests_per_second: Annotated[float, Field(strict=True, ge=0.01, le=10_000)] = 5
    """Average rate per host."""
    max_card_bytes: Annotated[int, Field(strict=True, ge=1024, le=MAX_CARD_BYTES)] = MAX_CARD_BYTES
    """Maximum size of a card, after decompression."""
    max_document_bytes: Annotated[int, Field(strict=True, ge=1024, le=MAX_DOCUMENT_BYTES)] = (
        MAX_DOCUMENT_BYTES
    )
    """Maximum size of a health document, after decompression."""
    max_targets: Annotated[int, Field(strict=True, ge=1, le=MAX_TARGETS)] = MAX_TARGETS
    """Maximum of targets in all directories. A directory that lists more is refused, not truncated."""
