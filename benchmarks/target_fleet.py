"""A local directory of 181,666 targets, most of which do not work.

Each target has one of loopback's 16 million addresses, and a name that a real name server (NSD) knows. One
process answers for all targets, by the address that was called. The shares of the failures are those of the
census that started this project.
"""

import asyncio
import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import uvloop

ZONE = "fleet.test"
FIRST_ADDRESS = IPv4Address("127.16.0.1")
"""Whose address lies below is no target."""
SHARES = {"refused": 0.60, "unknown_name": 0.25, "not_found": 0.05, "page": 0.05, "silent": 0.038}
"""Of all targets; the rest is alive."""
CARD_PATH = b"/.well-known/agent-card.json"
HEALTH_PATH = b"/.well-known/agent-health"
INTERFACE_PATH = b"/a2a"
MCP_PATH = b"/mcp"
"""Endpoint of an MCP server of 2026-07-28."""
OLDER_MCP_PATH = b"/older/mcp"
"""Endpoint of one that needs a handshake."""
KINDS = (*SHARES, "alive")


@dataclass(frozen=True, slots=True)
class TargetFleet:
    """So many targets, of so many kinds; the kinds lie evenly among the numbers."""

    size: int
    shares: dict[str, float] = field(default_factory=lambda: dict(SHARES))

    def kind(self, number: int) -> str:
        """Return what is wrong with a target; `alive` if nothing is."""
        # The golden ratio spreads any share evenly.
        place, bound = number * 0.6180339887498949 % 1.0, 0.0
        for kind, share in self.shares.items():
            bound += share
            if place < bound:
                return kind
        return "alive"

    def address(self, number: int) -> IPv4Address:
        """Return the address of a target."""
        return FIRST_ADDRESS + number

    def host(self, number: int) -> str:
        """Return the name of a target."""
        return f"t{number:07}.{ZONE}"

    def counts(self) -> dict[str, int]:
        """Return how many there are of each kind."""
        counts = dict.fromkeys(KINDS, 0)
        for number in range(self.size):
            counts[self.kind(number)] += 1
        return counts

    def write_list(self, file: Path, port: int, closed_port: int, path: str = "/") -> None:
        """Write the directory: one URL per line, all with the same path."""
        with file.open("w") as lines:
            for number in range(self.size):
                at = closed_port if self.kind(number) == "refused" else port
                lines.write(f"http://{self.host(number)}:{at}{path}\n")

    def write_zone(self, file: Path) -> None:
        """Write the names for the name server; those of unknown names are missing."""
        with file.open("w") as lines:
            lines.write(f"$ORIGIN {ZONE}.\n$TTL 3600\n@ SOA ns hostmaster 1 3600 3600 3600 3600\n@ NS ns\n")
            lines.write("ns A 127.0.0.1\n")
            for number in range(self.size):
                if self.kind(number) != "unknown_name":
                    lines.write(f"t{number:07} A {self.address(number)}\n")


class _Target(asyncio.Protocol):
    """Answers one connection, by the address that it came to."""

    def __init__(self, fleet: TargetFleet) -> None:
        self._fleet = fleet

    def connection_made(self, transport: Any) -> None:
        """See whom they call."""
        self._transport = transport
        called = IPv4Address(transport.get_extra_info("sockname")[0])
        self._kind = self._fleet.kind(int(called) - int(FIRST_ADDRESS))

    def data_received(self, data: bytes) -> None:
        """Answer each GET, or one POST; requests are small and come in one piece here."""
        if self._kind == "silent":
            return
        if data.startswith(b"POST"):
            head, _, body = data.partition(b"\r\n\r\n")
            self._transport.write(self._posted(head.split(b" ", 2)[1], body))
            return
        for head in data.split(b"\r\n\r\n")[:-1]:
            self._transport.write(self._answer(head.split(b" ", 2)[1]))

    def _posted(self, path: bytes, body: bytes) -> bytes:
        if self._kind != "alive" or path not in (MCP_PATH, OLDER_MCP_PATH):
            return self._answer(path)
        call = json.loads(body)
        answers = _MCP_RESULTS[path]
        if call["method"] not in answers:
            return _reply(call, error={"code": -32601, "message": "Method not found"})
        result = answers[call["method"]]
        return _ACCEPTED if result is None else _reply(call, result=result)

    def _answer(self, path: bytes) -> bytes:
        if self._kind == "page":
            return _PAGE
        if self._kind == "alive" and path == INTERFACE_PATH:
            return _NO_GET
        if self._kind != "alive" or path not in (CARD_PATH, HEALTH_PATH, b"/older" + HEALTH_PATH):
            return _NOT_FOUND
        return _card(self._transport.get_extra_info("sockname")) if path == CARD_PATH else _document()


def _response(status: str, content_type: str, body: bytes, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


_NOT_FOUND = _response("404 Not Found", "application/json", b'{"detail":"Not Found"}')
_NO_GET = _response("405 Method Not Allowed", "application/json", b"{}", "Allow: POST\r\n")
_PAGE = _response(
    "200 OK", "text/html; charset=utf-8", b"<!doctype html><title>Welcome</title>" + b" " * 4000
)


_ACCEPTED = _response("202 Accepted", "application/json", b"")
_SERVER = {"capabilities": {"tools": {}}, "serverInfo": {"name": "billing", "version": "1.4.2"}}
_MCP_RESULTS: dict[bytes, dict[str, dict[str, Any] | None]] = {
    MCP_PATH: {"server/discover": {"supportedVersions": ["2026-07-28"], **_SERVER}},
    OLDER_MCP_PATH: {
        "initialize": {"protocolVersion": "2025-11-25", **_SERVER},
        "notifications/initialized": None,
        "ping": {},
    },
}


def _reply(call: dict[str, Any], **members: Any) -> bytes:
    body = {"jsonrpc": "2.0", "id": call.get("id"), **members}
    return _response("200 OK", "application/json", json.dumps(body).encode())


def _card(sockname: tuple[str, int]) -> bytes:
    card = {
        "protocolVersion": "0.3.0",
        "name": "Billing",
        "description": "Answers questions about invoices, and issues them.",
        "url": f"http://{sockname[0]}:{sockname[1]}/a2a",
        "preferredTransport": "JSONRPC",
        "version": "1.4.2",
        "capabilities": {"streaming": True, "pushNotifications": False},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain", "application/json"],
        "skills": [
            {
                "id": f"skill-{number}",
                "name": f"Skill {number}",
                "description": "Does it well.",
                "tags": ["a", "b"],
            }
            for number in range(4)
        ],
    }
    return _response("200 OK", "application/json", json.dumps(card).encode(), 'ETag: W/"1"\r\n')


_documents: dict[int, bytes] = {}


def _document() -> bytes:
    """Return a document as our middleware serves it, computed once in a minute."""
    minute = int(time.time()) // 60
    if minute not in _documents:
        _documents.clear()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "schema_version": "0.1.0",
            "agent_id": "urn:agent:billing",
            "timestamp": now,
            "health": {
                "status": "healthy",
                "uptime_seconds": 86_400,
                "last_healthy_at": now,
            },
            "calibration": {
                "response_ratio": 0.998,
                "error_ratio": 0.002,
                "latency_p50_ms": 182.0,
                "latency_p99_ms": 911.5,
                "sample_count": 48_211,
                "measurement_window_seconds": 86_400,
            },
            "decay": {"calibration_trend": "stable", "days_since_model_change": None},
        }
        _documents[minute] = _response(
            "200 OK", "application/json", json.dumps(body).encode(), "Cache-Control: max-age=60\r\n"
        )
    return _documents[minute]


def _listening() -> socket.socket:
    listening = socket.socket()
    # All addresses of loopback, and of loopback only.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
    listening.bind(("0.0.0.0", 0))  # noqa: S104 - see above
    listening.listen(4096)
    return listening


def serve_fleet(size: int, shares: dict[str, float], certificate: str | None = None) -> None:
    """Answer for all targets until stdin is closed; prints the port, one that is closed, and one for TLS.

    `certificate` is the file of a certificate and its key; without one, the last port is 0.
    """
    listening, listening_tls = _listening(), None
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    if certificate is not None:
        listening_tls = _listening()
        tls.load_cert_chain(certificate)
    closed = socket.create_server(("127.0.0.1", 0))
    closed_port = closed.getsockname()[1]
    closed.close()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        threading.Thread(
            target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(done.set)), daemon=True
        ).start()
        fleet = TargetFleet(size, shares)
        servers = [await loop.create_server(lambda: _Target(fleet), sock=listening)]
        tls_port = 0
        if listening_tls is not None:
            servers.append(await loop.create_server(lambda: _Target(fleet), sock=listening_tls, ssl=tls))
            tls_port = listening_tls.getsockname()[1]
        print(listening.getsockname()[1], closed_port, tls_port, flush=True)
        await done.wait()
        for server in servers:
            server.close()

    uvloop.run(run())


@dataclass(frozen=True, slots=True)
class RunningFleet:
    """A fleet that answers, and the name server that knows it."""

    fleet: TargetFleet
    port: int
    closed_port: int
    pid: int
    dns_server: str
    """As the definition's `resolver.servers` takes it."""
    dns_pid: int
    tls_port: int = 0
    """0 without a certificate."""

    def cpu_seconds(self) -> float:
        """Return what the fleet and its name server have used so far."""
        return cpu_seconds(self.pid) + cpu_seconds(self.dns_pid)


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(value) for value in fields[11:15]) / 100


@contextlib.contextmanager
def running_fleet(
    fleet: TargetFleet, directory: Path, certificate: Path | None = None
) -> Iterator[RunningFleet]:
    """Run fleet and name server until the block ends; `certificate` holds its key too."""
    if shutil.which("nsd") is None:
        raise SystemExit("nsd is absent: there is no name server for the fleet (apt-get install nsd)")
    command = [sys.executable, __file__, str(fleet.size), json.dumps(fleet.shares)]
    if certificate is not None:
        command.append(str(certificate))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as answering:
        try:
            ports = answering.stdout.readline() if answering.stdout is not None else ""
            if not ports:
                raise SystemExit("the fleet did not start")
            port, closed_port, tls_port = (int(text) for text in ports.split())
            with _name_server(fleet, directory) as (dns_port, dns_pid):
                dns_server = f"127.0.0.1:{dns_port}"
                yield RunningFleet(
                    fleet, port, closed_port, answering.pid, dns_server, dns_pid, tls_port=tls_port
                )
        finally:
            answering.terminate()


@contextlib.contextmanager
def _name_server(fleet: TargetFleet, directory: Path) -> Iterator[tuple[int, int]]:
    zone = directory / "fleet.zone"
    fleet.write_zone(zone)
    port = _free_udp_port()
    config = directory / "nsd.conf"
    config.write_text(f"""server:
    ip-address: 127.0.0.1@{port}
    username: ""
    chroot: ""
    database: ""
    zonesdir: "{directory}"
    pidfile: "{directory}/nsd.pid"
    zonelistfile: "{directory}/zone.list"
    xfrdfile: "{directory}/xfrd.state"
    server-count: 1
    verbosity: 0
    rrl-ratelimit: 0
remote-control:
    control-enable: no
zone:
    name: {ZONE}
    zonefile: fleet.zone
""")
    command: Sequence[str] = ["nsd", "-d", "-c", str(config)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as serving:
        try:
            _wait_for_names(fleet, port, serving)
            yield port, _answering_pid(serving.pid)
        finally:
            serving.terminate()


def _answering_pid(pid: int) -> int:
    """Return the process that answers: NSD starts one that reads the zone, and that one another."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return _answering_pid(int(children[-1])) if children else pid


def _free_udp_port() -> int:
    # NSD wants it for TCP too.
    while True:
        with socket.create_server(("127.0.0.1", 0)) as stream, socket.socket(type=socket.SOCK_DGRAM) as free:
            port = int(stream.getsockname()[1])
            with contextlib.suppress(OSError):
                free.bind(("127.0.0.1", port))
                return port


def _wait_for_names(fleet: TargetFleet, port: int, serving: "subprocess.Popen[bytes]") -> None:
    """Wait until the zone is loaded: a million names take a while."""
    name = b"".join(bytes([len(label)]) + label.encode() for label in f"ns.{ZONE}".split("."))
    question = b"\x12\x34\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00" + name + b"\x00\x00\x01\x00\x01"
    with socket.socket(type=socket.SOCK_DGRAM) as asking:
        asking.settimeout(0.2)
        for _ in range(600):
            if serving.poll() is not None:
                reason = serving.stderr.read().decode() if serving.stderr else ""
                raise SystemExit(f"nsd did not start: {reason}")
            with contextlib.suppress(OSError):
                asking.sendto(question, ("127.0.0.1", port))
                if asking.recv(512)[3] & 0x0F == 0:
                    return
            time.sleep(0.1)
    raise SystemExit(f"nsd has not loaded {fleet.size} names within two minutes")


if __name__ == "__main__":
    serve_fleet(int(sys.argv[1]), json.loads(sys.argv[2]), *sys.argv[3:])
