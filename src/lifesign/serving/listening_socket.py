"""Listening socket of a server, and its errors."""

import errno
import os
import socket

from lifesign.errors import InvalidValue
from lifesign.http_client.system_resolver import addresses_of
from lifesign.serving.errors import CannotListen

BACKLOG = 4_096
"""Maximum of connections that wait to be accepted."""
TAKE_SECONDS = 30.0
"""Time after which a client that does not receive an answer is disconnected."""


def check_host(host: str) -> None:
    """Return if the text can be an address or a name, known or not. Raises InvalidValue."""
    try:
        is_name = bool(host.encode("idna")) and host.isprintable()
    except UnicodeError:
        is_name = False
    if not is_name:
        raise InvalidValue("host", host, "an address or a name")


def check_address(host: str, port: int) -> None:
    """Raise CannotListen unless a host name has an address, which may be that of another machine."""
    _first_address(host, port)


def bound(host: str, port: int) -> socket.socket:
    """Return a listening socket, at any free port if `port` is 0; CannotListen with the reason."""
    family, address = _first_address(host, port)
    try:
        listening = socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        # Its own text also has the attempted action.
        is_in_use = error.errno == errno.EADDRINUSE
        raise CannotListen(host, port, os.strerror(error.errno or 0), is_in_use=is_in_use) from None
    # Accepted connections inherit it. Without it, the kernel keeps the stream of a host that vanished for 15
    # minutes: what the server writes fits into the socket's buffer.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(TAKE_SECONDS * 1000))
    return listening


def _first_address(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        family, *_, address = addresses_of(host, port)[0]
    except socket.gaierror as error:
        raise CannotListen(host, port, error.strerror or str(error)) from None
    except UnicodeError:
        raise CannotListen(host, port, "this is neither an address nor a host name") from None
    return family, (str(address[0]), int(address[1]))


def url_of(listening: socket.socket, host: str, scheme: str = "http") -> str:
    """Return the URL of the server, under the requested host."""
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{listening.getsockname()[1]}"
