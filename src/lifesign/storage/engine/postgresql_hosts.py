"""Hosts of PostgreSQL to which the driver may connect, and send a password without TLS."""

import asyncio
import socket
import stat
from pathlib import Path
from typing import Any

from lifesign.loopback.listeners import IN_THIS_PROCESS
from lifesign.loopback.socket_users import is_loopback, place_of

RESOLVE_SECONDS = 5.0
_LOCALHOST = "localhost"
_LOOPBACK = ("127.0.0.1", "::1")
_SOCKET = ".s.PGSQL."


async def vetted(host: str, port: int, *, is_verified: bool) -> tuple[list[str], list[str]]:
    """Return the hosts to which asyncpg may connect in place of one, and why it must not connect to others.

    `is_verified`: TLS verifies the server. Otherwise a name that leads to this machine becomes its addresses,
    as another user could listen at one of them. The name comes last, for a file with passwords; it is left
    out if an address was refused.
    """
    if host.startswith("/"):
        refusal = _directory_refusal(host)
        return ([host], []) if refusal is None else ([], [refusal])
    if is_verified:
        return [host], []
    try:
        found = await _addresses(host, port)
        on_this_machine = [_address_on_this_machine(*each) for each in found]
    except (OSError, UnicodeError) as error:
        return [], [f"the host {host} cannot be resolved ({str(error) or type(error).__name__})"]
    if not any(on_this_machine):
        return [host], []
    passed, refusals = [], []
    for (_, address), local in zip(found, on_this_machine, strict=True):
        refusal = None if local is None else IN_THIS_PROCESS.refusal_before(local, port)
        if refusal is None:
            passed.append(local or address[0])
        else:
            refusals.append(refusal)
    if refusals or not await _leads_here(host, port):
        return passed, refusals
    return list(dict.fromkeys([*passed, host])), refusals


async def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    """Return the addresses of a host as sockets have them, those of IPv4 first. Raises OSError."""
    names = _LOOPBACK if host.lower().removesuffix(".") == _LOCALHOST else (host,)
    found: list[tuple[socket.AddressFamily, Any]] = []
    async with asyncio.timeout(RESOLVE_SECONDS):
        for name in names:
            # In another thread.
            answers = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
            found += [(family, address) for family, _, _, _, address in answers]
    return sorted(found, key=lambda each: each[0] != socket.AF_INET)


async def _leads_here(host: str, port: int) -> bool:
    """Return whether the driver would find a name where `_addresses` has found it.

    A name server may lead `localhost` to another machine if /etc/hosts has no line for it.
    """
    if host.lower().removesuffix(".") != _LOCALHOST:
        return True
    try:
        answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        # The driver does not find it either.
        return True
    return all(is_loopback(place_of(address)) for *_, address in answers)


def _address_on_this_machine(family: socket.AddressFamily, address: Any) -> str | None:
    """Return the address of this machine to which a connection would lead; None if it leads elsewhere."""
    if is_loopback(place_of(address)):
        return str(address[0])
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing. The kernel replaces 0.0.0.0, and takes the same address for both ends.
            probe.connect(address)
        except OSError:
            return None
        peer = probe.getpeername()[0]
        return str(peer) if peer == probe.getsockname()[0] else None


def _directory_refusal(host: str) -> str | None:
    """Return why no server may be looked for in this directory; None if it may."""
    directory = Path(host).parent if _SOCKET in host else Path(host)
    try:
        mode = directory.stat().st_mode
    except OSError:
        # The driver reports it.
        return None
    if not mode & stat.S_IWOTH:
        return None
    return (
        f"every user of the machine can create a socket in {directory}. Name another directory, such as "
        "?host=/run/postgresql (unix_socket_directories in PostgreSQL's settings), or write @127.0.0.1"
    )
