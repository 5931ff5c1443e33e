"""The probe definition: targets, requests, intervals and limits.

The names of the attributes are the keys of `probes/*.yml`; `read_definition_file` reads them from there, and
`schemas/probe.schema.json` is made of them. Every setting except `name` has a default. Every duration is in
seconds.
"""

from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from lifesign.domain.common.project import PROJECT_URL, project_suffix
from lifesign.domain.credentials.secret_place import FileName
from lifesign.domain.files.validation_messages import invalid_setting
from lifesign.domain.net.allowed_addresses import (
    MAX_NETWORKS,
    AddressRefused,
    Network,
    read_networks,
    without_password,
)
from lifesign.domain.net.network_class import PUBLIC_CLASSES, is_loopback
from lifesign.domain.observation.witness_rule import Canary
from lifesign.domain.probing.shard_share import MAX_TTL_SECONDS
from lifesign.domain.targets.target import TargetKind, host_of, read_target
from lifesign.domain.tasks.lease import MIN_TTL_SECONDS, TTL_SECONDS
from lifesign.errors import InvalidValue
from lifesign.prober.definition.credentials import Credentials
from lifesign.prober.definition.directory_source import DirectorySource
from lifesign.prober.definition.layer_settings import DefinitionMapping, LayerSettings
from lifesign.prober.definition.pacing_settings import CadenceSettings, Limits, Timeouts
from lifesign.prober.definition.target_settings import (
    TargetItem,
    TargetSettings,
    merge_targets,
    require_answers,
)
from lifesign.prober.definition.values import (
    FORMS,
    CanaryClass,
    Contact,
    Host,
    Name,
    NetworkName,
    RegistryUrl,
    ResolverName,
    Switch,
    check_canaries,
    name_from,
    resolver_address,
)
from lifesign.prober.definition.witness_settings import (
    CanaryItem,
    CanarySettings,
    SelfCheckSettings,
    WitnessSettings,
)

FLUSH_SECONDS: Final = 5.0
"""Maximum time for which a result waits for others, unless a definition sets another."""
PRODUCT: Final = "lifesign-prober"
"""Name of the prober in the User-Agent and in robots.txt."""

MAX_DIRECTORIES: Final = 100
MAX_INLINE_TARGETS: Final = 10_000
"""Maximum of targets in the definition itself; a directory file may list more."""
MAX_OPT_OUT_HOSTS: Final = 10_000
"""Maximum of opted-out hosts in the definition itself; a file may list more."""
MAX_OPT_OUT_FILES: Final = 20
MAX_RESOLVERS: Final = 8
MAX_CANARIES: Final = 100
"""Maximum per network class."""
MAX_CANARY_CLASSES: Final = MAX_NETWORKS + len(PUBLIC_CLASSES)
PLACEHOLDER_CANARIES: Final = frozenset({
    "www.example.com", "www.debian.org", "www.python.org", "www.ietf.org", "www.wikipedia.org",
})  # fmt: skip
"""Placeholder hosts in the shipped definitions, which the operator must replace."""
MAX_EVIDENCE_MEGABYTES: Final = 1_048_576
MAX_KEEP_DAYS: Final = 3660


class OptOutSettings(DefinitionMapping):
    """Targets that are never probed."""

    hosts: Annotated[
        tuple[Host, ...],
        Field(max_length=MAX_OPT_OUT_HOSTS),
    ] = ()
    """Names of hosts; with a dot before it, also of all below: .example.org."""
    files: Annotated[tuple[FileName, ...], Field(max_length=MAX_OPT_OUT_FILES)] = ()
    """Files with one host or URL per line."""
    robots_txt: Switch = True
    """Whether the prober reads and follows a host's robots.txt."""


class Networks(DefinitionMapping):
    """Networks that the prober may contact besides the public internet."""

    allow: Annotated[tuple[NetworkName, ...], Field(max_length=MAX_NETWORKS)] = ()
    """Private networks that may be probed, such as 10.1.0.0/16; metadata addresses are never contacted."""


class ResolverSettings(DefinitionMapping):
    """Name servers that the prober uses."""

    servers: Annotated[tuple[ResolverName, ...], Field(max_length=MAX_RESOLVERS)] = ()
    """Addresses of DNS servers, with a port where it is not 53; none: those of the system."""

    @property
    def endpoints(self) -> tuple[tuple[str, int], ...]:
        """The name servers as pairs of address and port."""
        return tuple(found for text in self.servers if (found := resolver_address(text)) is not None)


class EvidenceSettings(DefinitionMapping):
    """Where and how long to store the bodies of answers as evidence."""

    directory: FileName | None = None
    """Directory of the evidence; null stores none."""
    max_megabytes: Annotated[int, Field(strict=True, ge=1, le=MAX_EVIDENCE_MEGABYTES)] = 1024
    """Maximum size on disk, in units of 10^6 bytes. The oldest files are removed first."""
    keep_days: Annotated[float, Field(strict=True, gt=0, le=MAX_KEEP_DAYS)] = 30
    """Retention time."""


class ResultSettings(DefinitionMapping):
    """Where to send results, in addition to the local database."""

    jsonl: FileName | None = None
    """A file to which every observation is appended as one line of JSON; null: none."""
    registry: RegistryUrl | None = None
    """URL of a registry: it receives the results, decides, and divides the work among machines."""
    key_file: FileName | None = None
    """File with the registry's key; default: the environment. The definition itself never contains a key."""
    flush_seconds: Annotated[float, Field(strict=True, ge=0, le=60)] = FLUSH_SECONDS
    """Time that a result waits for others, so that they are sent as one batch."""
    lease_seconds: Annotated[float, Field(strict=True, ge=MIN_TTL_SECONDS, le=MAX_TTL_SECONDS)] = TTL_SECONDS
    """Duration of a process's lease on a part of the targets.

    After it, others take over those of a dead process.
    """


class ProbeDefinition(DefinitionMapping):
    """Content of a probe definition, such as `probes/*.yml`."""

    name: Name
    """Name of this probe in results and reports."""
    contact: Contact | None = None
    """Your address for the operators of probed agents: mailto: or https:. It is part of the User-Agent.

    Required to crawl public addresses: everything except literal addresses in `networks.allow` and localhost.
    """
    directories: Annotated[tuple[DirectorySource, ...], Field(max_length=MAX_DIRECTORIES)] = ()
    """Lists of agents."""
    targets: Annotated[
        tuple[TargetItem, ...], Field(max_length=MAX_INLINE_TARGETS), AfterValidator(merge_targets)
    ] = ()
    """Agents right here: by URL or domain, or as a mapping with settings for one target."""
    credentials: Credentials = ()
    """Credentials for agents behind a login. Each is sent to its own origin only."""
    ask: LayerSettings = LayerSettings()
    cadence: CadenceSettings = CadenceSettings()
    timeouts: Timeouts = Timeouts()
    limits: Limits = Limits()
    opt_out: OptOutSettings = OptOutSettings()
    networks: Networks = Networks()
    resolver: ResolverSettings = ResolverSettings()
    canaries: Annotated[
        dict[CanaryClass, Annotated[tuple[CanaryItem, ...], Field(max_length=MAX_CANARIES)]],
        Field(max_length=MAX_CANARY_CLASSES),
    ] = {}  # noqa: RUF012 - pydantic copies it
    """Canaries by network class: hosts that are always reachable.

    A failure counts only if half of the canaries of its class answer after it. Classes are `public_ipv4`,
    `public_ipv6` (https URLs at five hosts or more) and the networks of `networks.allow` (one or more).
    Without canaries, other targets that answer are the witnesses.
    """
    witnesses: WitnessSettings = WitnessSettings()
    self_check: SelfCheckSettings = SelfCheckSettings()
    evidence: EvidenceSettings = EvidenceSettings()
    results: ResultSettings = ResultSettings()

    @field_validator("directories")
    @classmethod
    def _require_distinct_names(cls, directories: tuple[DirectorySource, ...]) -> tuple[DirectorySource, ...]:
        labels = [source.label for source in directories]
        for label in labels:
            if labels.count(label) > 1:
                raise PydanticCustomError(
                    "same_name", "two directories are called {label}: give one a name", {"label": label}
                )
        return directories

    @field_validator("canaries")
    @classmethod
    def _check_canaries(
        cls, canaries: dict[str, tuple[CanarySettings, ...]], info: ValidationInfo
    ) -> dict[str, tuple[CanarySettings, ...]]:
        networks = info.data.get("networks")
        allowed = read_networks(networks.allow) if networks is not None else ()
        for network_class, sources in canaries.items():
            check_canaries(network_class, [source.url for source in sources], allowed)
        return canaries

    @model_validator(mode="after")
    def _require_targets(self) -> Self:
        if not (self.directories or self.targets):
            raise PydanticCustomError("nobody", "expected directories or targets: there is nothing to probe")
        return self

    @model_validator(mode="after")
    def _check_assertions(self) -> Self:
        if self.ask.call is not None:
            raise PydanticCustomError(
                "call_of_all",
                (
                    "expected `call` only in the `ask` of a single target, not in the `ask` of the whole "
                    "definition"
                ),
            )
        for target in self.targets:
            require_answers(target, self.ask)
        return self

    @property
    def user_agent(self) -> str:
        """The User-Agent header of every request, with the contact if there is one."""
        return f"{PRODUCT}/{metadata.version('lifesign')}{project_suffix(self.contact)}"

    @property
    def has_contact(self) -> bool:
        """Whether the User-Agent contains a contact for the operator of a probed agent."""
        return bool(self.contact or PROJECT_URL)

    @property
    def needs_no_witness(self) -> bool:
        """Whether all targets are on this machine: their failures count without a witness."""
        return not self.directories and all(is_loopback(url) for url in self.target_urls)

    @property
    def canaries_by_class(self) -> dict[str, tuple[Canary, ...]]:
        """Canaries by network class, for each class that has any."""
        return {
            network_class: tuple(source.canary for source in sources)
            for network_class, sources in self.canaries.items()
            if sources
        }

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Canary URLs that still contain the placeholder host of a shipped definition."""
        urls = [canary.url for canaries in self.canaries_by_class.values() for canary in canaries]
        return tuple(url for url in urls if host_of(url) in PLACEHOLDER_CANARIES)

    @property
    def target_urls(self) -> tuple[str, ...]:
        """URLs of the targets that the definition itself lists."""
        return tuple(target.url for target in self.targets)

    @property
    def settings_by_url(self) -> dict[str, TargetSettings]:
        """Targets that have settings of their own, by URL."""
        return {target.url: target for target in self.targets if target.has_settings}

    @property
    def networks_allowed(self) -> tuple[Network, ...]:
        """The private networks that may be contacted."""
        return read_networks(self.networks.allow)

    @classmethod
    def for_urls(
        cls,
        urls: Iterable[str],
        *,
        contact: str | None = None,
        networks: Sequence[str] = (),
        message: str | None = None,
        total_seconds: float | None = None,
        kind: str | None = None,
    ) -> "ProbeDefinition":
        """Return the definition of a probe of these URLs, without a file.

        InvalidValue with the argument's name for values that a definition does not allow.
        """
        targets = []
        for url in urls:
            target = read_target(url)
            if isinstance(target, AddressRefused):
                raise InvalidValue("URL", without_password(url), f"an agent's URL ({target.reason})")
            targets.append({"url": target, "kind": kind})
        read_networks(networks, "network")
        try:
            return cls.model_validate({
                "name": "probe",
                "contact": contact,
                "targets": targets,
                "ask": {"message": None if message is None else {"text": message}},
                "timeouts": Timeouts.within(total_seconds),
                "networks": {"allow": networks},
            })  # fmt: skip
        except ValidationError as error:
            raise invalid_setting(error, "URL", FORMS) from None

    @classmethod
    def for_directory(
        cls,
        source: str,
        *,
        contact: str | None = None,
        networks: Sequence[str] = (),
        total_seconds: float | None = None,
        kind: str | None = None,
    ) -> "ProbeDefinition":
        """Return the definition of a census of one list, at a URL or in a file.

        `kind`: the only kind of entries that become targets, and of those without a kind. The deadlines are
        those of `for_urls`, so that both find the same agents alive. Raise InvalidValue, with the argument's
        name, for values that a definition does not allow.
        """
        is_url = "://" in source
        if is_url and isinstance(target := read_target(source), AddressRefused):
            raise InvalidValue("LIST", without_password(source), f"the URL of a list ({target.reason})")
        read_networks(networks, "network")
        try:
            directory = DirectorySource(
                url=source if is_url else None,
                file=None if is_url else Path(source),
                # A list that is named by hand means its content at this moment.
                allow_shrink=True,
                kinds=tuple(TargetKind) if kind is None else (TargetKind(kind),),
            )
            return cls.model_validate({
                "name": directory.label if is_url else name_from(Path(source).stem),
                "contact": contact,
                "directories": [directory],
                "timeouts": Timeouts.within(total_seconds),
                "limits": {"concurrency": 1000},
                "networks": {"allow": networks},
            })  # fmt: skip
        except ValidationError as error:
            raise invalid_setting(error, "LIST", FORMS) from None
