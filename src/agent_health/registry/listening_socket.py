"""How does a server get the socket that it listens on, and how does it end if it gets none?"""

import os
import socket

from agent_health.errors import CannotListen

BACKLOG = 4_096
"""Of connections that nobody has accepted yet."""


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens, at any free port if `port` is 0; CannotListen says why there is none."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except socket.gaierror as error:
        raise CannotListen(host, port, error.strerror or str(error)) from None
    except OSError as error:
        # Its own text also says what was attempted.
        raise CannotListen(host, port, os.strerror(error.errno or 0)) from None


def url_of(listening: socket.socket, host: str, scheme: str = "http") -> str:
    """Return where it is reached, under the host that was asked for."""
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{listening.getsockname()[1]}"
