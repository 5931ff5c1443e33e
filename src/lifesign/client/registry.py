"""Client for a registry (RFC-0016)."""

from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self

import aiohttp

from lifesign.client.registry_connection import TIMEOUT_SECONDS, RegistryConnection
from lifesign.client.secret_file import KeySource

if TYPE_CHECKING:
    from lifesign.client.registry_agents import RegistryAgents
    from lifesign.client.registry_census import RegistryCensus
    from lifesign.client.registry_directories import RegistryDirectories
    from lifesign.client.registry_events import RegistryEvents
    from lifesign.client.registry_leases import RegistryLeases, RegistryStates
    from lifesign.client.registry_monitor import RegistryMonitor
    from lifesign.client.registry_opt_outs import RegistryOptOuts
    from lifesign.client.registry_shards import RegistryShards
    from lifesign.client.registry_targets import RegistryTargets
    from lifesign.client.registry_tasks import RegistryTasks


class RegistryClient:
    """Client of a registry's HTTP API.

        async with RegistryClient("https://registry.example", key=key) as client:
            record = await client.agents.register("billing-1", role_id="billing")

    `url` is where the registry's `/api/v1` begins, `key` what it knows the caller by; to any host but
    loopback the key travels over https alone, unless `allow_plain_http`. No redirect is followed. A
    `KeySource` gives the key of each request.

    `timeout_seconds` (above 0, at most 300) is for one call with all its tries. Questions, heartbeats,
    renewals and deletions are tried again when no answer comes, or 429, 502, 503 or 504, as long as the
    wait that was asked for fits into that time; anything else only if it could not even be sent.

    A session of your own keeps its cookies, proxies and default headers, and stays open; ours has none.
    InvalidValue for what cannot be right; everything else that is raised is a RegistryError.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | KeySource | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        session: aiohttp.ClientSession | None = None,
        allow_plain_http: bool = False,
    ) -> None:
        self._connection = RegistryConnection(
            url, key=key, timeout_seconds=timeout_seconds, session=session, allow_plain_http=allow_plain_http
        )

    # Each is loaded with its models when it is asked for: a command has no time to spare for those of the
    # others, and an adapter no memory.
    @cached_property
    def agents(self) -> "RegistryAgents":
        """Agents and their states."""
        from lifesign.client.registry_agents import RegistryAgents  # noqa: PLC0415

        return RegistryAgents(self._connection)

    @cached_property
    def leases(self) -> "RegistryLeases":
        """Leases on resources, with their fencing tokens."""
        from lifesign.client.registry_leases import RegistryLeases  # noqa: PLC0415

        return RegistryLeases(self._connection)

    @cached_property
    def states(self) -> "RegistryStates":
        """States of intents, which only the holder of a lease may write."""
        from lifesign.client.registry_leases import RegistryStates  # noqa: PLC0415

        return RegistryStates(self._connection)

    @cached_property
    def tasks(self) -> "RegistryTasks":
        """Tasks and their progress."""
        from lifesign.client.registry_tasks import RegistryTasks  # noqa: PLC0415

        return RegistryTasks(self._connection)

    @cached_property
    def events(self) -> "RegistryEvents":
        """The event log."""
        from lifesign.client.registry_events import RegistryEvents  # noqa: PLC0415

        return RegistryEvents(self._connection)

    @cached_property
    def monitor(self) -> "RegistryMonitor":
        """State of the monitoring: suspended verdicts, faults, confirmed outages."""
        from lifesign.client.registry_monitor import RegistryMonitor  # noqa: PLC0415

        return RegistryMonitor(self._connection)

    @cached_property
    def targets(self) -> "RegistryTargets":
        """Targets of probes, and their results."""
        from lifesign.client.registry_targets import RegistryTargets  # noqa: PLC0415

        return RegistryTargets(self._connection)

    @cached_property
    def shards(self) -> "RegistryShards":
        """Shards: parts of the list of targets, which workers of probers claim."""
        from lifesign.client.registry_shards import RegistryShards  # noqa: PLC0415

        return RegistryShards(self._connection)

    @cached_property
    def directories(self) -> "RegistryDirectories":
        """Directories: named lists of targets."""
        from lifesign.client.registry_directories import RegistryDirectories  # noqa: PLC0415

        return RegistryDirectories(self._connection)

    @cached_property
    def census(self) -> "RegistryCensus":
        """Numbers of living targets, and passes of probers over all targets."""
        from lifesign.client.registry_census import RegistryCensus  # noqa: PLC0415

        return RegistryCensus(self._connection)

    @cached_property
    def opt_outs(self) -> "RegistryOptOuts":
        """Origins whose owners do not want them to be probed."""
        from lifesign.client.registry_opt_outs import RegistryOptOuts  # noqa: PLC0415

        return RegistryOptOuts(self._connection)

    def __repr__(self) -> str:
        return f"RegistryClient({str(self._connection.url)!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Not needed after `async with`."""
        await self._connection.close()
