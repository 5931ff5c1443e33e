"""Settings of the server."""

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from lifesign.domain.files.validation_messages import invalid_setting
from lifesign.domain.lifecycle.network_silence import MassSilencePolicy
from lifesign.domain.lifecycle.verdict_suspension import MonitorPolicy
from lifesign.domain.net.public_url import PublicUrl
from lifesign.domain.targets.target import SHARDS
from lifesign.errors import InvalidValue
from lifesign.registry.policies import DEFAULT_POLICIES, Policies

DEFAULT_DATABASE = "sqlite:///lifesign.db"
DAY_SECONDS = 86_400
MAX_RETENTION_SECONDS = 36_500 * DAY_SECONDS
_MASS_EXIT = DEFAULT_POLICIES.mass_exit
_MASS_SILENCE = DEFAULT_POLICIES.mass_silence


def _check_network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError:
        raise PydanticCustomError(
            "network", "expected networks such as 10.1.0.0/16, without bits beyond the mask, or addresses"
        ) from None


def _check_public_url(text: str) -> str:
    try:
        PublicUrl.read(text)
    except InvalidValue as error:
        raise PydanticCustomError("public_url", "expected {form}", {"form": error.expected}) from None
    return text


Network = Annotated[str, AfterValidator(_check_network)]
"""`10.1.0.0/16`, or one address."""


class RegistrySettings(BaseModel):
    """The server's settings; InvalidValue names the first one that is wrong."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    database: Annotated[str, Field(min_length=1, max_length=2048)] = DEFAULT_DATABASE
    """`sqlite:///FILE`, or `postgresql://USER@HOST/NAME` when one machine is not enough."""
    sweep_seconds: Annotated[float, Field(ge=0.05, le=60)] = 0.5
    """Interval at which deadlines are checked: missed heartbeats are noticed this much late at most."""
    answer_seconds: Annotated[float, Field(ge=0.5, le=60)] = 5
    """Time limit of a request's wait for the database; then the answer is 503."""
    requests_per_second: Annotated[float, Field(gt=0, le=1_000_000)] = 1_000
    """Requests per second and key on average, in each server process. One key may serve a whole fleet."""
    request_burst: Annotated[int, Field(ge=1, le=10_000_000)] = 20_000
    """Requests per key in a burst, in each server process."""
    command_seconds: Annotated[float, Field(ge=1, le=604_800)] = DEFAULT_POLICIES.command_seconds
    """Time after which a command that its agent did not follow expires, unless the request has another."""
    event_retention_seconds: Annotated[float, Field(ge=DAY_SECONDS, le=MAX_RETENTION_SECONDS)] | None = None
    """Age at which events are archived to a file; None keeps all in the database."""
    task_retention_seconds: Annotated[float, Field(ge=DAY_SECONDS, le=MAX_RETENTION_SECONDS)] = (
        90 * DAY_SECONDS
    )
    """Time for which finished tasks are kept, with their reports; their events stay."""
    archive_dir: Path | None = None
    """Directory for archived events; None: one named after the database, beside an SQLite file."""
    state_dir: Path | None = None
    """Directory outside the database for its marker; None: `lifesign/databases` in the user's state
    directory.
    """
    dialects: tuple[Literal["openintent"], ...] = ()
    """Foreign dialects of the API to serve: `openintent`."""
    public_url: Annotated[str, AfterValidator(_check_public_url)] | None = None
    """URL under which others reach this server, also in its own health document.

    The dashboard is served only under this host and under IP addresses.
    """
    open_dashboard: bool = False
    """True if everyone may read the dashboard. Actions always need a login."""
    trusted_proxies: tuple[Network, ...] = ()
    """Proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are trusted."""
    metrics_agents: Annotated[int, Field(ge=0, le=10_000)] = 100
    """Maximum number of unhealthy and dead agents with a series of their own in `/metrics`."""
    open_metrics: bool = False
    """True if everyone may read `/metrics`; otherwise it needs a key that may read."""
    webhook_networks: tuple[Network, ...] = ()
    """Private networks that webhooks, and proofs of opt-outs, may contact, such as `10.1.0.0/16`."""
    mass_exit_cadence_seconds: Annotated[float, Field(ge=1, le=3600)] = _MASS_EXIT.cadence_seconds
    """Length of a cadence: agents that fall silent within it are counted together."""
    mass_exit_min_exits: Annotated[int, Field(ge=1, le=1_000_000_000)] = _MASS_EXIT.min_exits
    """A mass exit, which suspends verdicts, needs more than this number of silent agents in a cadence."""
    mass_exit_factor: Annotated[float, Field(ge=1, le=1_000_000)] = _MASS_EXIT.factor
    """A mass exit needs more than this multiple of the usual number of silent agents in a cadence."""
    mass_exit_end_factor: Annotated[float, Field(ge=1, le=1_000_000)] = _MASS_EXIT.end_factor
    """A cadence is quiet if fewer agents wait for a verdict than the larger of `mass_exit_min_exits` and this
    multiple of the usual number; at most the factor above.
    """
    mass_exit_quiet_cadences: Annotated[int, Field(ge=1, le=100)] = _MASS_EXIT.quiet_cadences
    """Number of quiet cadences in a row that end a suspension."""
    mass_exit_max_suspension_seconds: Annotated[float, Field(ge=1, le=86_400)] = (
        _MASS_EXIT.max_suspension_seconds
    )
    """Maximum duration of a suspension, at least one cadence. After it, silent agents can become unhealthy or
    dead."""
    mass_exit_baseline_cadences: Annotated[int, Field(ge=1, le=100)] = _MASS_EXIT.baseline_cadences
    """Number of past cadences whose mean is the usual number of agents that fall silent."""
    mass_exit_proven_seconds: Annotated[float, Field(ge=0, le=86_400)] = _MASS_EXIT.proven_seconds
    """An agent counts towards a mass exit only if it gave liveness signals for this time."""
    mass_silence_expected_seconds: Annotated[float, Field(ge=1, le=2_592_000)] = (
        _MASS_SILENCE.expected_seconds
    )
    """Only addresses that answered within this time count when the server looks for a mass silence."""
    mass_silence_together_seconds: Annotated[float, Field(ge=1, le=86_400)] = _MASS_SILENCE.together_seconds
    """Addresses fell silent together if their last answers are at most this far apart."""
    witness_seconds: Annotated[float, Field(ge=1, le=86_400)] = DEFAULT_POLICIES.witness_seconds
    """Minimum time between two uses of a target as a witness."""
    clock_offset_seconds: Annotated[float, Field(ge=1, le=86_400)] = DEFAULT_POLICIES.clock_offset_seconds
    """A prober's wall clock that differs from the database's by more is reported."""
    watch_seconds: Annotated[float, Field(ge=0.05, le=3600)] = DEFAULT_POLICIES.watch_seconds
    """Interval at which silent network classes and agents with old evidence are counted."""
    evidence_lost_seconds: Annotated[float, Field(ge=1, le=86_400)] = DEFAULT_POLICIES.evidence_lost_seconds
    """Time for which agents must have old evidence before `monitor.evidence_lost` is logged."""
    prober_workers: Annotated[int, Field(ge=1, le=SHARDS)] = DEFAULT_POLICIES.prober_workers
    """Maximum number of workers that may probe with one key, unless the key has its own limit."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.mass_exit_end_factor > self.mass_exit_factor:
            raise PydanticCustomError(
                "mass_exit_end_factor", "expected mass_exit_end_factor to be at most mass_exit_factor"
            )
        if self.mass_exit_max_suspension_seconds < self.mass_exit_cadence_seconds:
            raise PydanticCustomError(
                "mass_exit_max_suspension_seconds",
                "expected mass_exit_max_suspension_seconds to be at least mass_exit_cadence_seconds",
            )
        return self

    @property
    def policies(self) -> Policies:
        """The thresholds among the settings."""
        return Policies(
            mass_exit=MonitorPolicy(
                cadence_seconds=self.mass_exit_cadence_seconds,
                min_exits=self.mass_exit_min_exits,
                factor=self.mass_exit_factor,
                end_factor=self.mass_exit_end_factor,
                quiet_cadences=self.mass_exit_quiet_cadences,
                max_suspension_seconds=self.mass_exit_max_suspension_seconds,
                baseline_cadences=self.mass_exit_baseline_cadences,
                proven_seconds=self.mass_exit_proven_seconds,
            ),
            mass_silence=MassSilencePolicy(
                expected_seconds=self.mass_silence_expected_seconds,
                together_seconds=self.mass_silence_together_seconds,
            ),
            witness_seconds=self.witness_seconds,
            clock_offset_seconds=self.clock_offset_seconds,
            watch_seconds=self.watch_seconds,
            evidence_lost_seconds=self.evidence_lost_seconds,
            command_seconds=self.command_seconds,
            prober_workers=self.prober_workers,
        )

    @property
    def trusts_everybody(self) -> bool:
        """Whether every client may claim any address."""
        return any(ip_network(network).prefixlen == 0 for network in self.trusted_proxies)

    @classmethod
    def read(cls, **given: object) -> Self:
        """Return settings; those that are not given have their defaults."""
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise _setting_error(error) from None


def _setting_error(error: ValidationError) -> InvalidValue:
    """Return the text of the first fault, with the name of the setting."""
    first = error.errors(include_url=False)[0]
    # A fault of two settings is reported for the one that the rule is about.
    name = str(first["loc"][0] if first["loc"] else first["type"])
    fault = invalid_setting(error, name)
    return InvalidValue(name, fault.given, fault.expected)
