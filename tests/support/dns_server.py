"""A real name server on loopback, over UDP and TCP, that answers from a table."""

import asyncio
import contextlib
import struct
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_address
from typing import cast

A, AAAA, CNAME, SOA = 1, 28, 5, 6
_RESPONSE, _TRUNCATED, _RECURSION_AVAILABLE = 0x8000, 0x0200, 0x0080
_MAX_UDP_BYTES = 512
_TYPES = {4: A, 6: AAAA}


class Failure(Enum):
    """An answer without addresses; its value is the response code (RFC 1035 4.1.1)."""

    NO_DATA = 0
    SERVFAIL = 2
    NXDOMAIN = 3
    REFUSED = 5
    SILENCE = -1
    GARBAGE = -2


@dataclass(frozen=True)
class Alias:
    """A CNAME; its destination is also looked up in the table, and is part of the answer."""

    name: str


Answer = Failure | Alias | Sequence[str]
"""A failure, an alias, or addresses of both families."""


class Turns:
    """Answers given one after the other; the last one repeats."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = answers


Names = Mapping[str, Answer | Turns] | Mapping[str, Answer]
"""By name in lower case without a final dot; others do not exist. "" is the root."""


@dataclass
class DnsServer:
    """Answers questions from a table, which may change at any time."""

    names: dict[str, Answer | Turns]
    ttl_s: int = 60
    elsewhere: Answer = Failure.NXDOMAIN
    """For all other names."""
    port: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    """How often for a name, over both families together."""
    _turns: Counter[tuple[str, int]] = field(default_factory=Counter)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def reply(self, query: bytes, max_bytes: int) -> bytes | None:
        """Return the answer to one query; None for silence."""
        name, end = _read_name(query, 12)
        kind, _ = struct.unpack_from("!HH", query, end)
        self.asked[name] += 1
        answer = self._turn(name, kind)
        if answer is Failure.SILENCE:
            return None
        if answer is Failure.GARBAGE:
            return query[:2] + b"\xff" * 20
        code = answer.value if isinstance(answer, Failure) else 0
        records = [] if isinstance(answer, Failure) else self._records(name, kind, answer)
        question = query[12 : end + 4]
        whole = _message(query, question, records, code)
        return whole if len(whole) <= max_bytes else _message(query, question, [], code, _TRUNCATED)

    def _turn(self, name: str, kind: int) -> Answer:
        answer = self.names.get(name, self.elsewhere)
        if not isinstance(answer, Turns):
            return answer
        turn = self._turns[name, kind]
        self._turns[name, kind] += 1
        return answer.answers[min(turn, len(answer.answers) - 1)]

    def _records(self, name: str, kind: int, answer: Alias | Sequence[str]) -> list[bytes]:
        if not isinstance(answer, Alias):
            addresses = [ip_address(address) for address in answer]
            return [
                self._record(name, kind, address.packed)
                for address in addresses
                if _TYPES[address.version] == kind
            ]
        alias = self._record(name, CNAME, _written(answer.name))
        behind = self._turn(answer.name, kind)
        return [alias] if isinstance(behind, Failure) else [alias, *self._records(answer.name, kind, behind)]

    def _record(self, name: str, kind: int, data: bytes) -> bytes:
        return _written(name) + struct.pack("!HHIH", kind, 1, self.ttl_s, len(data)) + data


@contextlib.asynccontextmanager
async def dns_serving(
    names: Names, *, ttl_s: int = 60, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[DnsServer]:
    """Run a name server until the block ends; port 0 is any free one."""
    server = DnsServer(dict(names), ttl_s=ttl_s)
    loop = asyncio.get_running_loop()
    tcp = await asyncio.start_server(lambda r, w: _serve_tcp(server, r, w), host, port)
    server.port = tcp.sockets[0].getsockname()[1]
    udp, _ = await loop.create_datagram_endpoint(lambda: _Udp(server), (host, server.port))
    try:
        yield server
    finally:
        udp.close()
        tcp.close()
        await tcp.wait_closed()


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is none by inheritance.
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        reply = self._server.reply(data, _MAX_UDP_BYTES)
        if reply is not None and self._transport is not None:
            self._transport.sendto(reply, addr)


async def _serve_tcp(server: DnsServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            reply = server.reply(await reader.readexactly(length), 65_535)
            if reply is not None:
                writer.write(struct.pack("!H", len(reply)) + reply)
    writer.close()


def _message(query: bytes, question: bytes, records: Sequence[bytes], code: int, flags: int = 0) -> bytes:
    asked_flags = struct.unpack_from("!H", query, 2)[0] & 0x0100
    flags |= _RESPONSE | _RECURSION_AVAILABLE | asked_flags | code
    return query[:2] + struct.pack("!HHHHH", flags, 1, len(records), 0, 0) + question + b"".join(records)


def _read_name(message: bytes, start: int) -> tuple[str, int]:
    labels = []
    while length := message[start]:
        labels.append(message[start + 1 : start + 1 + length].decode("ascii"))
        start += 1 + length
    return ".".join(labels).lower(), start + 1


def _written(name: str) -> bytes:
    labels = [label.encode("ascii") for label in name.split(".")]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
