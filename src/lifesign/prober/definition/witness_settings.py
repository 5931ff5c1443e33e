"""Witnesses and the check of the prober itself in a probe definition."""

from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from lifesign.domain.observation.witness_rule import Canary, WitnessPolicy
from lifesign.prober.definition.lag_limits import LagPolicy
from lifesign.prober.definition.layer_settings import DefinitionMapping
from lifesign.prober.definition.target_settings import spelled_out
from lifesign.prober.definition.values import CanaryUrl

MAX_LAG_RATIO: Final = 0.25
"""Maximum event loop lag, as a part of the shortest timeout."""
MAX_STANDSTILL_RATIO: Final = 0.5
"""Maximum duration of a single stall, as a part of the shortest timeout."""


class CanarySettings(DefinitionMapping):
    """A canary: a host that normally always answers, and its expected answer."""

    url: CanaryUrl
    """URL of the canary."""
    status: Annotated[int, Field(strict=True, ge=100, le=599)] | None = None
    """The HTTP status of its answer; null: any from 200 to 399."""

    @property
    def canary(self) -> Canary:
        """The canary in the form of the rule for witnesses."""
        return Canary(url=self.url, status=self.status)


CanaryItem = Annotated[
    CanarySettings, BeforeValidator(spelled_out, json_schema_input_type=str | CanarySettings)
]
"""Accept a URL instead of a mapping."""


class WitnessSettings(DefinitionMapping):
    """Rules for witnesses: a failure counts only if a witness answers after it and the target fails again."""

    round_seconds: Annotated[float, Field(strict=True, ge=0, le=3600)] = 30
    """Witnesses of one network class are asked at most once in this time, for all failures that wait.

    If half an interval is less, it counts instead, here and for `next_answer_seconds`.
    """
    answer_seconds: Annotated[float, Field(strict=True, ge=0.05, le=60)] = 3
    """Time limit for a witness's answer."""
    next_answer_seconds: Annotated[float, Field(strict=True, ge=0, le=3600)] = 5
    """Time that a failure waits for the next answer of another target before the prober asks a witness."""
    second_request_seconds: Annotated[float, Field(strict=True, ge=0, le=3600)] = 60
    """Maximum delay between the witness's answer and the second request to the target.

    Later, the answer is void.
    """
    max_clock_offset_seconds: Annotated[float, Field(strict=True, ge=0, le=86_400)] = 30
    """If the clock differs by more from the registry's or those of all witnesses, dates do not count."""

    def policy(self, interval_s: float) -> WitnessPolicy:
        """Return the settings in the form that the rule for witnesses uses, for an interval of the crawl.

        A failure that waited for several intervals would have expired when it is reported.
        """
        return WitnessPolicy(
            round_s=min(self.round_seconds, interval_s / 2),
            answer_s=self.answer_seconds,
            next_answer_s=min(self.next_answer_seconds, interval_s / 2),
            second_request_s=self.second_request_seconds,
            max_clock_offset_s=self.max_clock_offset_seconds,
        )


class SelfCheckSettings(DefinitionMapping):
    """Limits from which on the prober counts as slow, so that its timeouts do not count.

    They are at most a quarter, and half, of the shortest timeout.
    """

    max_lag_seconds: Annotated[float, Field(strict=True, gt=0, le=60)] = 1
    """Maximum event loop lag, as the 99th percentile of 10 s."""
    max_standstill_seconds: Annotated[float, Field(strict=True, gt=0, le=60)] = 2
    """Maximum duration of a single stall."""

    def policy(self, shortest_timeout_s: float) -> LagPolicy:
        """Return the limits in the form that the check of the prober itself uses."""
        return LagPolicy(
            max_lag_s=min(self.max_lag_seconds, MAX_LAG_RATIO * shortest_timeout_s),
            max_standstill_s=min(self.max_standstill_seconds, MAX_STANDSTILL_RATIO * shortest_timeout_s),
        )
