"""What can be wrong with a set-up, how is that found out, and what is there to do about it?

Every question has its own time, and an answer whatever happens: this is for set-ups that are out of order.
"""

import errno
import os
import resource
import shutil
import socket
import ssl
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError
from pydantic_core import from_json
from sqlalchemy import make_url

from agent_health.access import Role, looks_like_key
from agent_health.cli.server_database import run_deed, sqlite_file
from agent_health.client.variables import KEY_VARIABLE
from agent_health.counted import plural
from agent_health.errors import AgentHealthError, CannotListen, InvalidFile
from agent_health.monitor_health import HoldCause, MonitorState
from agent_health.monitor_record import MonitorRecord
from agent_health.registry.listening_socket import bound
from agent_health.registry.own_certificate import certificate_ends_s
from agent_health.registry.settings import RegistrySettings
from agent_health.storage import keys, registry_row, schema
from agent_health.storage.database import Transaction
from agent_health.storage.database_faults import DAMAGED
from agent_health.storage.registry_row import RegistryRow
from agent_health.target import host_of
from agent_health.time_span import duration_text, precise_text
from agent_health.utc_time import utc_text

SWEEP_WARNING_SECONDS: Final = 10.0
"""Without a sweep, though a server is at work: they come twice a second unless a setting says otherwise."""
ASK_SECONDS: Final = 5.0
"""For one question to a registry."""
MAX_ANSWER_BYTES: Final = 65_536
CLOCK_WARNING_SECONDS: Final = 2.0
"""Below, clocks are in step: a registry tells its time in whole seconds."""
CLOCK_FAULT_SECONDS: Final = 60.0
"""Beyond, times of heartbeats and documents are of no use."""
ROOM_WARNING_BYTES: Final = 1_000_000_000
ROOM_FAULT_BYTES: Final = 16_777_216
FEW_FILES: Final = 4_096
CERTIFICATE_WARNING_SECONDS: Final = 14 * 86_400.0
OUTSIDE: Final = {"IPv4": (socket.AF_INET, "192.0.2.1"), "IPv6": (socket.AF_INET6, "2001:db8::1")}
"""Addresses for documentation (RFC 5737, RFC 3849); a way to them is looked for, and nothing is sent."""
EXTRAS: Final = {
    "client": "aiohttp", "registry": "sqlalchemy", "prober": "pycares", "postgres": "asyncpg", "mcp": "mcp",
    "metrics": "prometheus_client",
}  # fmt: skip
"""A module by which each extra is known to be installed."""

Verdict = Literal["ok", "warning", "fault", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one question."""

    about: str
    verdict: Verdict
    told: str
    advice: str = ""
    """What to do; empty if nothing is to be done."""


def of_the_program() -> Iterator[Finding]:
    """Ask what is installed."""
    there = [extra for extra, module in EXTRAS.items() if find_spec(module) is not None]
    python = ".".join(map(str, sys.version_info[:3]))
    told = f"agent-health {version('agent-health')}, Python {python}, with {', '.join(there)}"
    yield Finding("program", "ok", told)
    if "metrics" not in there:
        yield Finding(
            "metrics", "skipped", "a server here has no /metrics", "pip install 'agent-health[metrics]'"
        )
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < FEW_FILES:
        advice = (
            f"allow more: LimitNOFILE= of a unit, or ulimit -Hn; below {FEW_FILES:,} a fleet does not fit"
        )
        yield Finding("open files", "warning", f"this user may have {most:,} open", advice)


def of_the_database(url: str, place: str = "") -> Iterator[Finding]:
    """Ask whether the database can be reached, is of this version, can be changed, and has the time.

    `place` is where somebody listens who is to sweep there; empty if nobody does.
    """
    file = sqlite_file(url)
    try:
        shown = make_url(url).render_as_string(hide_password=True)
    except Exception:  # noqa: BLE001 - SQLAlchemy's own, of any kind; it may hold a password
        yield Finding("database", "fault", "this is no URL", "sqlite:///FILE or postgresql://USER@HOST/NAME")
        return
    if file is not None:
        yield from _of_the_directory(file.parent, "database")
        if not file.exists():
            told = f"{shown} is not there yet"
            yield Finding(
                "database", "skipped", told, "agent-health serve sets it up, or --database names another"
            )
            return
        yield from _of_the_mode(file, "database")
    try:
        yield from run_deed(url, lambda transaction: [*_look_into(transaction, shown, place)], is_write=False)
        run_deed(url, _change_nothing)
    except AgentHealthError as error:
        yield Finding("database", "fault", str(error), _advice_for(error, file))
    else:
        yield Finding("database", "ok", "it takes changes")


def _look_into(transaction: Transaction, shown: str, place: str) -> Iterator[Finding]:
    apart_s = transaction.now_s - time.time()
    schema.check(transaction)
    yield Finding("database", "ok", f"{shown} answers, at revision {schema.newest_revision()}")
    yield _of_the_clock("clock", "the database's", apart_s)
    admins = keys.count(transaction, Role.ADMIN)
    if admins:
        yield Finding("keys", "ok", f"{admins} of role admin")
    else:
        advice = "agent-health keys create --role admin --name NAME"
        yield Finding(
            "keys", "warning", "nobody has an admin key: nobody may manage keys over the API", advice
        )
    yield _of_the_sweeps(registry_row.find(transaction), transaction.now_s, place)


def _of_the_sweeps(row: RegistryRow | None, now_s: float, place: str) -> Finding:
    """Say when silence was last looked for, and whether somebody should have done so since."""
    if row is None or row.swept_at_s is None:
        return Finding("server", "skipped", "no server has ever swept here")
    ago_s = now_s - row.swept_at_s
    told = f"the last sweep was {duration_text(ago_s)} ago"
    if ago_s < SWEEP_WARNING_SECONDS:
        return Finding("server", "ok", told)
    is_claimed = row.sweeper_until_s is not None and now_s < row.sweeper_until_s
    if not (place or is_claimed):
        return Finding("server", "ok", f"{told}, and no server is at work")
    who = f"somebody listens at {place}" if place else "a server has claimed the next one"
    advice = (
        "a server that has just begun sweeps at once; else its log says why it does not: it stands still, or "
        "has another database"
    )
    return Finding("server", "warning", f"{told}, though {who}: nobody's silence is noticed", advice)


def _change_nothing(transaction: Transaction) -> None:
    registry_row.store(transaction, registry_row.lock(transaction))


def _advice_for(error: AgentHealthError, file: Path | None) -> str:
    name = type(error).__name__
    if name == "SchemaOutdated":
        return "make a backup, then agent-health migrate"
    if name == "SchemaUnknown":
        return "a newer version has been here: install that one"
    if name == "ForeignDatabase":
        return "name a database of our own"
    if str(error) == DAMAGED:
        return "if it was a database of ours, restore a backup into a new file; else name another file"
    if file is not None:
        return (
            f"look at its owner and mode, at the room on its disk, and whether another process holds {file}"
        )
    return "is PostgreSQL running, may this user connect, and does a firewall let you through?"


def held_place(host: str, port: int) -> str:
    """Return where a server would listen if somebody does so already, in words; empty if nobody does."""
    try:
        bound(host, port).close()
    except CannotListen as error:
        return f"{host}, port {port}" if error.why == os.strerror(errno.EADDRINUSE) else ""
    return ""


def of_the_archives(directory: Path | None) -> Iterator[Finding]:
    """Ask whether archived events have a place."""
    if directory is None:
        return
    if directory.exists():
        yield from _of_the_directory(directory, "archives")
    else:
        yield Finding("archives", "skipped", f"{directory} is not there yet", "agent-health serve makes it")


def _of_the_port(host: str, port: int, scheme: str) -> Finding:
    try:
        bound(host, port).close()
    except CannotListen as error:
        if _answers(f"{scheme}://{_in_url(host)}:{port}/healthz") is not None:
            return Finding("port", "ok", f"somebody answers at {host}, port {port}: a server is at work")
        if error.why != os.strerror(errno.EADDRINUSE):
            return Finding("port", "fault", str(error), "end who has it, or choose another --port")
        told = f"somebody holds {host}, port {port}, and does not answer within {ASK_SECONDS:g} s"
        advice = "a server that has just begun answers soon; else end who has it, or choose another --port"
        return Finding("port", "fault", told, advice)
    return Finding("port", "ok", f"{host}, port {port} is free")


def of_the_server(host: str, port: int, certificate: Path | None, key: Path | None) -> Iterator[Finding]:
    """Ask whether a server could listen, and with which certificate."""
    yield _of_the_port(host, port, "http" if certificate is None else "https")
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        yield Finding("certificate", "fault", "a certificate and its key belong together", "give both")
        return
    yield from _of_the_mode(key, "TLS key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        advice = "PEM files of a certificate with its chain, and of its key without a password"
        yield Finding("certificate", "fault", f"it cannot be used: {error}", advice)
        return
    ends_s = certificate_ends_s(certificate)
    if ends_s is None:
        return
    left_s = ends_s - time.time()
    told = f"it ends on {time.strftime('%Y-%m-%d', time.gmtime(ends_s))}"
    if left_s <= 0:
        yield Finding("certificate", "fault", told, "renew it")
    elif left_s < CERTIFICATE_WARNING_SECONDS:
        yield Finding("certificate", "warning", told, "renew it, and start the server anew")
    else:
        yield Finding("certificate", "ok", told)


def of_the_proxies(networks: Sequence[str]) -> Iterator[Finding]:
    """Ask whether those whose word on addresses counts are proxies, and not everybody."""
    if not networks:
        return
    named = ", ".join(networks)
    try:
        settings = RegistrySettings.read(trusted_proxies=networks)
    except AgentHealthError as error:
        yield Finding("proxies", "fault", str(error), "name addresses or networks: --trusted-proxies")
        return
    if settings.trusts_everybody:
        told = f"{named}: whoever connects may claim to come from any address, and limits hold nobody back"
        yield Finding("proxies", "warning", told, "name the proxies alone: --trusted-proxies")
    else:
        yield Finding("proxies", "ok", f"{named}: their word on who connects is taken, and nobody else's")


def of_the_network() -> Iterator[Finding]:
    """Ask whether names are looked up, and which ways lead out."""
    try:
        socket.getaddrinfo("localhost", None)
        yield Finding("names", "ok", "localhost is known")
    except OSError as error:
        yield Finding(
            "names", "fault", f"localhost is unknown: {error}", "look at /etc/hosts and nsswitch.conf"
        )
    for family, (number, address) in OUTSIDE.items():
        try:
            with socket.socket(number, socket.SOCK_DGRAM) as unsent:
                # Nothing is sent: the kernel looks for a way.
                unsent.connect((address, 9))
            yield Finding(
                family, "ok", "this machine has a route out; whether anything answers there was not asked"
            )
        except OSError as error:
            advice = "" if family == "IPv6" else "a prober sees nobody from here"
            told = f"this machine has no route out: {error.strerror}"
            yield Finding(family, "skipped" if family == "IPv6" else "warning", told, advice)


def of_a_registry(url: str | None, key_file: Path | None) -> Iterator[Finding]:
    """Ask whether a registry answers, has the time, and knows the key."""
    if url is None and key_file is None and not os.environ.get(KEY_VARIABLE):
        return
    key = os.environ.get(KEY_VARIABLE, "")
    if key_file is not None:
        yield from _of_the_mode(key_file, "key")
        try:
            key = key_file.read_bytes()[:MAX_ANSWER_BYTES].decode("ascii", "replace").strip()
        except OSError as error:
            yield Finding(
                "key", "fault", f"{key_file} cannot be read: {error.strerror}", "name another --key-file"
            )
            return
    if key and not looks_like_key(key):
        yield Finding(
            "key", "fault", "this is no key of ours: ahk_ and 43 characters", "keys create prints one"
        )
    if url is not None:
        yield from _of_what_answers(url, key)


def _of_what_answers(url: str, key: str) -> Iterator[Finding]:
    answer = _answers(f"{url.rstrip('/')}/healthz")
    if answer is None:
        advice = "is it running, is the address right, and does a proxy or firewall let you through?"
        yield Finding("registry", "fault", f"{url} does not answer", advice)
        return
    status, date, body = answer
    if not _is_a_registrys(url, status, body):
        advice = "give the URL of agent-health serve; of a proxy before it, look whether it finds the server"
        yield Finding(
            "registry", "fault", f"{url} answers {status}, and not as a registry does: it is none", advice
        )
        return
    if status == 200:
        yield Finding("registry", "ok", f"{url} can serve")
    else:
        yield Finding(
            "registry", "fault", f"{url} answers {status}", "its log says why: mostly its database is away"
        )
    if date is not None:
        yield _of_the_clock("clock", "the registry's", date - time.time())
    if looks_like_key(key):
        yield from _of_the_key(url, key)


def _is_a_registrys(url: str, status: int, body: bytes) -> bool:
    """Whether this is what a registry answers when it is asked whether it can serve.

    Of others many say "ok" too: only the API refuses who has no key in a registry's own words.
    """
    if status != 200:
        return _has_code(body)
    refusal = _answers(f"{url.rstrip('/')}/api/v1/monitor")
    return refusal is not None and _has_code(refusal[2])


def _has_code(body: bytes) -> bool:
    """Whether an error is told as a registry tells it."""
    try:
        told = from_json(body)
    except ValueError:
        return False
    error = told.get("error") if isinstance(told, dict) else None
    return isinstance(error, dict) and isinstance(error.get("code"), str)


def _of_its_decisions(answer: bytes) -> Iterator[Finding]:
    """Say whether silence takes anybody down now."""
    try:
        monitor = MonitorRecord.model_validate_json(answer)
    except ValidationError:
        return
    if monitor.state is not MonitorState.HELD:
        yield Finding("decisions", "ok", "silence is believed")
        return
    silent = plural(monitor.exits, "agent is", "agents are")
    why = (
        "a prober says that it is ill"
        if monitor.held_because is HoldCause.PROBER_ILL
        else f"{monitor.exits} {silent} silent, more than {monitor.limit} at once are not believed"
    )
    yield Finding(
        "decisions",
        "warning",
        f"held since {utc_text(monitor.since, 'seconds')}: {why}, and nobody is taken down for silence",
        "it ends by itself; if the silence is real: POST /api/v1/monitor/release, or the dashboard's button",
    )


def _of_the_key(url: str, key: str) -> Iterator[Finding]:
    asked = _answers(f"{url.rstrip('/')}/api/v1/monitor", key)
    status = None if asked is None else asked[0]
    if status == 401:
        yield Finding(
            "key", "fault", "the registry does not know it, or it is over", "agent-health keys create"
        )
    elif status in {200, 403}:
        yield Finding("key", "ok", "the registry knows it")
        if asked is not None and status == 200:
            yield from _of_its_decisions(asked[2])
    else:
        yield Finding("key", "warning", f"the registry answers {status} to it", "ask again later")


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

    from agent_health.cli.directory_import import unread_lists  # noqa: PLC0415 - another extra

    unread = asyncio.run(unread_lists(definition))
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


def _of_the_clock(about: str, whose: str, apart_s: float) -> Finding:
    if abs(apart_s) < CLOCK_WARNING_SECONDS:
        return Finding(about, "ok", f"{whose} is in step with this machine's")
    side = "ahead of" if apart_s > 0 else "behind"
    told = f"{whose} is {precise_text(abs(apart_s))} {side} this machine's"
    if abs(apart_s) >= CLOCK_FAULT_SECONDS:
        return Finding(about, "fault", told, "let both be set by NTP: timedatectl set-ntp true")
    return Finding(about, "warning", told, "let both be set by NTP: timedatectl set-ntp true")


def _of_the_directory(directory: Path, about: str) -> Iterator[Finding]:
    if not directory.is_dir():
        yield Finding(about, "fault", f"the directory {directory} is not there", f"mkdir -p {directory}")
        return
    if not os.access(directory, os.W_OK | os.X_OK):
        yield Finding(
            about, "fault", f"{directory} cannot be written to by this user", "chown it, or run as its owner"
        )
    free = shutil.disk_usage(directory).free
    told = f"{free / 1e9:.1f} GB are free in {directory.absolute()}"
    if free < ROOM_FAULT_BYTES:
        yield Finding("disk", "fault", told, "make room: changes cannot be stored")
    elif free < ROOM_WARNING_BYTES:
        yield Finding("disk", "warning", told, "make room, or let old events go: --event-retention-days")
    else:
        yield Finding("disk", "ok", told)


def _of_the_mode(file: Path, what: str) -> Iterator[Finding]:
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError:
        return
    if mode & 0o077:
        told = f"others may read {file} (mode {mode:04o}), which holds secrets"
        yield Finding(what, "warning", told, f"chmod 600 {file}")


def _answers(url: str, key: str = "") -> tuple[int, float | None, bytes] | None:
    """Return the status of an answer, the time in it and the beginning of its body; None without one.

    The time is in seconds since the epoch; of the body it is what came at once, at most MAX_ANSWER_BYTES.
    """
    import asyncio  # noqa: PLC0415 - with aiohttp it takes 200 ms

    import aiohttp  # noqa: PLC0415

    async def ask() -> tuple[int, float | None, bytes]:
        timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
        headers = {"X-API-Key": key} if key else {}
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.get(url, headers=headers, allow_redirects=False) as answer,
        ):
            date = answer.headers.get("Date")
            body = await answer.content.read(MAX_ANSWER_BYTES)
            return answer.status, None if date is None else parsedate_to_datetime(date).timestamp(), body

    try:
        return asyncio.run(ask())
    except (aiohttp.ClientError, OSError, ValueError, TimeoutError):
        return None


def _in_url(host: str) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - asked for, not listened on
    return f"[{shown}]" if ":" in shown else shown
