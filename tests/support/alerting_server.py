"""A TLS server that sends clients the reason for which it refuses their certificates.

Servers of asyncio close the connection without sending the alert; most others send it.
"""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

OK = b"HTTP/1.1 405 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass
class AlertingServer:
    """Answers each request by 405, as an interface answers a GET."""

    port: int
    heads: list[str] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    """Names in the certificates of the clients; empty for a client without one."""
    resumed: list[bool | None] = field(default_factory=list)
    """Whether the TLS session of each request was resumed."""
    may_close: threading.Event = field(default_factory=threading.Event)
    """Set from the beginning; a test clears it to let connections stay open after the answer."""

    def __post_init__(self) -> None:
        self.may_close.set()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def answer(self, connection: socket.socket, tls: ssl.SSLContext) -> None:
        """Answer one request, and wait for the client to end: closing at once would discard the alert."""
        connection.settimeout(60)
        line = tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with contextlib.suppress(OSError), line:
            try:
                line.do_handshake()
                head = b""
                while b"\r\n\r\n" not in head and (more := line.recv(4096)):
                    head += more
                self.heads.append(head.decode("latin-1"))
                names = (line.getpeercert() or {}).get("subjectAltName", ())
                self.clients.append(" ".join(str(name[1]) for name in names))
                self.resumed.append(line.session_reused)
                line.sendall(OK)
                self.may_close.wait(60)
            except ssl.SSLError:
                line.shutdown(socket.SHUT_WR)
                while line.recv(4096):
                    pass


@contextlib.contextmanager
def alerting(tls: ssl.SSLContext) -> Iterator[AlertingServer]:
    """Serve until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = AlertingServer(listener.getsockname()[1])

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=server.answer, args=(connection, tls), daemon=True).start()

        acceptor = threading.Thread(target=accept, daemon=True)
        acceptor.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            acceptor.join(60)
