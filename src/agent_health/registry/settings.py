"""Which settings does the server have?"""

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from agent_health.errors import InvalidSetting
from agent_health.expectation import invalid_setting
from agent_health.public_address import PublicAddress

DEFAULT_DATABASE = "sqlite:///agent-health.db"
DEFAULT_PORT = 8440


def _take_network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError:
        raise PydanticCustomError(
            "network", "expected networks such as 10.1.0.0/16, without bits beyond the mask, or addresses"
        ) from None


def _take_public_url(text: str) -> str:
    try:
        PublicAddress.read(text)
    except InvalidSetting as error:
        raise PydanticCustomError("public_url", "expected {form}", {"form": error.expected}) from None
    return text


Network = Annotated[str, AfterValidator(_take_network)]
"""`10.1.0.0/16`, or one address."""


class RegistrySettings(BaseModel):
    """The server's settings; InvalidSetting names the first one that is wrong."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    database: Annotated[str, Field(min_length=1, max_length=2048)] = DEFAULT_DATABASE
    """`sqlite:///FILE`, or `postgresql://USER@HOST/NAME` when one machine is not enough."""
    sweep_seconds: Annotated[float, Field(ge=0.05, le=60)] = 0.5
    """How often deadlines are looked at: silence is noticed this much late at most."""
    answer_seconds: Annotated[float, Field(ge=0.5, le=60)] = 5
    """How long a caller waits for the database before it is told to come again."""
    requests_per_second: Annotated[float, Field(gt=0, le=1_000_000)] = 1_000
    """Per key and server process, on average. One key may stand before a whole fleet."""
    request_burst: Annotated[int, Field(ge=1, le=10_000_000)] = 20_000
    """Per key and server process, at once."""
    command_seconds: Annotated[float, Field(ge=1, le=604_800)] = 3_600
    """How long a command waits for its agent, unless it says otherwise."""
    event_retention_days: Annotated[float, Field(ge=1, le=36_500)] | None = None
    """Older events are archived to a file; None keeps all in the database."""
    task_retention_days: Annotated[float, Field(ge=1, le=36_500)] = 90
    """Tasks that have been finished for longer are forgotten, with their reports; events stay."""
    archive_dir: Path | None = None
    """Where archived events go; None: beside an SQLite file, else the working directory."""
    state_dir: Path | None = None
    """Directory outside the database for its marker; None: `agent-health/databases` in the user's state."""
    dialects: tuple[Literal["openintent"], ...] = ()
    """Foreign dialects that are spoken too: `openintent`."""
    public_url: Annotated[str, AfterValidator(_take_public_url)] | None = None
    """Under which address others know this server; names it in its own health document.

    The dashboard is shown under this host, and under addresses, alone.
    """
    open_dashboard: bool = False
    """Whether everyone may read the dashboard; to act, people log in all the same."""
    trusted_proxies: tuple[Network, ...] = ()
    """Whose `X-Forwarded-For` and `X-Forwarded-Proto` count."""
    metrics_agents: Annotated[int, Field(ge=0, le=10_000)] = 100
    """Of how many agents that are down `/metrics` tells one by one: each is a series of its own."""
    open_metrics: bool = False
    """Whether `/metrics` is shown to everybody; else it needs a key that may read."""
    webhook_networks: tuple[Network, ...] = ()
    """Private networks that webhooks, and proofs of opt-outs, may lead to, such as `10.1.0.0/16`."""

    @property
    def trusts_everybody(self) -> bool:
        """Whether whoever connects may say from which address they come."""
        return any(ip_network(network).prefixlen == 0 for network in self.trusted_proxies)

    @classmethod
    def read(cls, **given: object) -> Self:
        """Return settings, those that are not given at their defaults."""
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise _told(error) from None


def _told(error: ValidationError) -> InvalidSetting:
    """Return what is wrong first, by the setting's own name, in our words."""
    name = str(error.errors(include_url=False)[0]["loc"][0])
    fault = invalid_setting(error, name)
    return InvalidSetting(name, fault.given, fault.expected)
