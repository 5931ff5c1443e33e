"""Can a probe definition be read, with its lists, and are its canaries known?"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from agent_health.cli.examination.asking import ASK_SECONDS
from agent_health.cli.examination.finding import Finding
from agent_health.counted import plural
from agent_health.errors import AgentHealthError, InvalidFile
from agent_health.target import host_of


def of_a_definition(file: Path) -> Iterator[Finding]:
    """Ask whether a probe definition can be read."""
    from agent_health.prober.definition_file import read_definition_file  # noqa: PLC0415 - another extra

    try:
        definition = read_definition_file(file)
    except InvalidFile as error:
        for fault in error.faults:
            yield Finding("definition", "fault", f"{file}: {fault}", "probes/reference.yml has every setting")
        return
    except AgentHealthError as error:
        yield Finding("definition", "fault", str(error), "name a file that is there")
        return
    import asyncio  # noqa: PLC0415 - takes 20 ms

    from agent_health.cli.directory_import import look_at_lists  # noqa: PLC0415 - another extra

    unread = asyncio.run(look_at_lists(definition)).unread
    for name, why in unread.items():
        yield Finding(
            "definition", "fault", f"{file}: the list {name}: {why}", "mend the list, or its format"
        )
    if not unread:
        yield Finding("definition", "ok", f"{file}: {definition.name}")
    if not definition.canaries:
        advice = "name five hosts of others under canaries: they tell a dead line from dead agents"
        yield Finding("definition", "warning", f"{file} has no canaries", advice)
        return
    hosts = sorted({host_of(url) for url in definition.canaries})
    servers = definition.resolver.servers
    whom = f", by {', '.join(servers)}" if servers else ""
    unknown = sorted(set(hosts) - _looked_up(hosts, servers))
    if 2 * len(unknown) > len(hosts):
        told = f"no address was found for {', '.join(unknown)}{whom}"
        advice = "look at /etc/resolv.conf, or name servers under resolver.servers"
        if servers:
            advice = "look whether those of resolver.servers answer from here, or leave them out"
        yield Finding("names", "fault", told, advice)
    else:
        canaries = f"{len(hosts)} {plural(len(hosts), 'canary has', 'canaries have')}"
        yield Finding("names", "ok", f"{len(hosts) - len(unknown)} of {canaries} an address{whom}")


def _looked_up(hosts: Sequence[str], servers: Sequence[str]) -> set[str]:
    """Return those names that have an address for a prober, which asks these name servers, else the system's.

    Whatever takes longer than ASK_SECONDS has none.
    """
    import asyncio  # noqa: PLC0415 - takes 20 ms

    from agent_health.prober.resolve import NoAddress, Resolver  # noqa: PLC0415 - another extra

    async def look_up() -> set[str]:
        async with Resolver(servers, timeout_s=ASK_SECONDS) as resolver:
            until_s = asyncio.get_running_loop().time() + ASK_SECONDS
            found = await asyncio.gather(*(resolver.resolve(host, until_s) for host in hosts))
        return {host for host, answer in zip(hosts, found, strict=True) if not isinstance(answer, NoAddress)}

    return asyncio.run(look_up())
