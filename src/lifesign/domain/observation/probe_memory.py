"""Memory of a target from one probe to the next.

It travels with the target, from worker to worker. It contains the facts on which `cadence` decides, and those
that save requests: the URLs of the card, the interface and the document. It contains no history. Times are
seconds since the epoch, by the clock of the registry: a prober with a wrong clock plans the same ticks.

Another prober may have written it, with a stolen key. A moment or a URL that no probe can produce is dropped
when a memory is read, and the rest is kept: the next probe finds it again.
"""

import re
from ipaddress import IPv6Address
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from lifesign.domain.a2a.security_schemes import MAX_SCHEMES, SchemeText
from lifesign.domain.mcp.conversation import Generation
from lifesign.domain.observation.login import OAuthMetadata
from lifesign.domain.observation.results import (
    AGENT_ID_PATTERN,
    MAX_ETAG_CHARS,
    MAX_URL_CHARS,
    NetworkClassName,
    ProbedAddress,
    ResultClass,
)

MAX_IN_ROW: Final = 1000
MAX_MOMENT_S: Final = 2.0**33
"""Latest time, in the year 2242. Above it, the arithmetic of ticks is not exact."""

MAX_PORT: Final = 65_535

_SUB_DELIMS: Final = "!$&'()*+,;="
_URL: Final = re.compile(
    rf"https?://(?:[\w.~%:{_SUB_DELIMS}-]*@)?(?:[\w.~%{_SUB_DELIMS}-]+|\[(?P<ip>[0-9a-f:.]+)\])"
    r"(?::(?P<port>[0-9]{1,5}))?(?:[/?#][!-~]*)?",
    re.ASCII | re.IGNORECASE,
)
"""An http(s) URL that can be parsed and written into a request, whatever its host is."""


def moment_or_none(at_s: float | None) -> float | None:
    """Return a time that a memory can store, in seconds since the epoch; None for others."""
    return at_s if at_s is not None and 0 <= at_s <= MAX_MOMENT_S else None


def _url_or_none(url: str | None) -> str | None:
    parts = None if url is None else _URL.fullmatch(url)
    if parts is None or not 1 <= int(parts["port"] or 80) <= MAX_PORT:
        return None
    if parts["ip"] is not None:
        try:
            IPv6Address(parts["ip"])
        except ValueError:
            return None
    return url


_Moment = Annotated[Annotated[float, Field(allow_inf_nan=False)] | None, AfterValidator(moment_or_none)]
_Url = Annotated[Annotated[str, Field(max_length=MAX_URL_CHARS)] | None, AfterValidator(_url_or_none)]


class ProbeMemory(BaseModel):
    """What the next probe of a target needs to know from earlier ones. `ProbeMemory()`: never probed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    probed_at_s: _Moment = None
    """When the last probe began, whatever its result."""
    result: Annotated[ResultClass, Field(strict=False)] | None = None
    """Result of the last measured probe (`Observation.result`)."""
    failures_in_row: Annotated[int, Field(ge=0, le=MAX_IN_ROW)] = 0
    """Number of measured failures since the last liveness signal."""
    silence_s: Annotated[float, Field(ge=0, le=MAX_MOMENT_S)] = 0.0
    """Silence by these failures as the registry counts it: each gap for two intervals at most, in seconds."""
    doublings: Annotated[int, Field(ge=0, le=MAX_IN_ROW)] = 0
    """Number of the latest failures that each double the interval."""
    confirm_at_s: _Moment = None
    """When the recovery that was seen last is confirmed; None if there is nothing to confirm."""
    not_before_s: _Moment = None
    """Time before which the peer asked for no requests (Retry-After, 402, 429)."""
    slowdowns: Annotated[int, Field(ge=0, le=MAX_IN_ROW)] = 0
    """Number of answers in a row that requested a slower rate; 1 if the last one only asked for money."""
    robots_read_at_s: _Moment = None
    """When its host's robots.txt was read last."""
    is_disallowed_by_robots: bool = False
    """Whether that robots.txt disallows the target."""
    disallowed_in_row: Annotated[int, Field(ge=0, le=MAX_IN_ROW)] = 0
    """Number of readings of robots.txt in a row that did not permit the target.

    0 with `is_disallowed_by_robots`: the last reading found no rules, which the next one has to confirm.
    """
    is_opted_out: bool = False
    """Whether a list of its prober excluded the target, as of the last probe."""
    card_read_at_s: _Moment = None
    """When a card was read, or found unchanged."""
    card_url: _Url = None
    """URL of the card."""
    card_redirect: _Url = None
    """Destination of a redirect from there; None without one."""
    card_etag: Annotated[str, Field(max_length=MAX_ETAG_CHARS)] | None = None
    card_digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """SHA-256 of its bytes; of an MCP server, which has no card, that of its tools as JSON."""
    interface_digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Digest of the published interface that was read last (`interface/published`)."""
    interface_changes: Annotated[int, Field(ge=0, le=MAX_IN_ROW)] = 0
    """Readings in a row that each found another published interface than the one before."""
    interface_url: _Url = None
    """The card's first interface that we can ask."""
    interface_binding: Annotated[str, Field(max_length=64)] | None = None
    interface_address: ProbedAddress | None = None
    """Address at which the interface answered last; None before the first answer."""
    interface_tenant: Annotated[str, Field(max_length=128)] | None = None
    """Tenant in requests, for an interface with several."""
    protocol_version: Annotated[str, Field(max_length=64)] | None = None
    """Version of the interface, or the generation of the card if the interface has none."""
    card_schemes: Annotated[tuple[SchemeText, ...], Field(strict=False, max_length=MAX_SCHEMES)] | None = None
    """Security schemes of the card; None without any."""
    oauth_metadata: OAuthMetadata | None = None
    """OAuth metadata that was read last, after a refusal."""
    oauth_metadata_at_s: _Moment = None
    """Time at which the metadata was read, or found to be missing."""
    health_url: _Url = None
    """URL of the last health document; before the first one, the URL in the card."""
    document_at_s: _Moment = None
    """The `timestamp` of the last health document, by the agent's clock."""

    mcp_generation: Annotated[Generation, Field(strict=False)] | None = None
    """Protocol generation of an MCP server."""
    mcp_generation_at_s: _Moment = None
    """Time at which the generation was determined."""
    link_registry: Annotated[str, Field(max_length=MAX_URL_CHARS)] | None = None
    """Registry that the card's health extension names; goes with `link_agent_id`."""
    link_agent_id: Annotated[str, Field(pattern=AGENT_ID_PATTERN)] | None = None
    """Agent of that registry that the card claims to be the card of."""
    alive_at_s: _Moment = None
    """Time of the last liveness signal; None without one."""
    network_class: NetworkClassName | None = None
    """Network class of the address that answered last; before the first answer, of the one asked first."""
    address: ProbedAddress | None = None
    """Address that answered last, IPv6 as its /64 network; None before the first answer."""

    @property
    def is_excluded(self) -> bool:
        """Whether the target is not probed because of its robots.txt or an opt-out."""
        return self.is_disallowed_by_robots or self.is_opted_out

    def to_json(self) -> str:
        """Return compact JSON without unknown members."""
        return self.model_dump_json(exclude_defaults=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> "ProbeMemory":
        """Read the output of `to_json`; pydantic's ValidationError for anything else."""
        return cls.model_validate_json(text)
