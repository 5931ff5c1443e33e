import asyncio
import socket

from tests.support.both_loops import on_both_loops

from lifesign.serving.write_coalescing import MAX_JOINED_BYTES, WriteCoalescingTransport

HEAD, BODY = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n", b"well"


class Wire(asyncio.Transport):
    """The bytes sent through a connection, piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed
        self.pieces.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0


def kept(wire: Wire) -> WriteCoalescingTransport:
    return WriteCoalescingTransport(wire, asyncio.get_running_loop())


@on_both_loops
async def test_header_and_body_are_sent_in_one_write() -> None:
    wire = Wire()
    answers = kept(wire)
    answers.write(HEAD)
    answers.write(BODY)
    assert wire.pieces == [HEAD + BODY]


@on_both_loops
async def test_large_body_is_not_copied() -> None:
    class Keeping(Wire):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            written.append(data)

    written: list[bytes | bytearray | memoryview] = []
    body = bytes(MAX_JOINED_BYTES + 1)
    answers = kept(Keeping())
    answers.write(HEAD)
    answers.write(body)
    answers.write(body)
    assert written[0] == HEAD
    assert [piece is body for piece in written] == [False, True, True]


@on_both_loops
async def test_response_without_a_body_is_sent_at_once() -> None:
    wire = Wire()
    answers = kept(wire)
    answers.write(HEAD)
    answers.write(b"")
    assert wire.pieces == [HEAD]


@on_both_loops
async def test_buffered_data_is_written_after_one_loop_iteration() -> None:
    wire = Wire()
    answers = kept(wire)
    answers.write(HEAD)
    assert wire.pieces == []
    assert answers.get_write_buffer_size() == len(HEAD)
    await asyncio.sleep(0)
    assert wire.pieces == [HEAD]
    assert answers.get_write_buffer_size() == 0


@on_both_loops
async def test_at_most_one_chunk_is_buffered() -> None:
    wire = Wire()
    answers = kept(wire)
    for piece in (HEAD, b"a", b"b", b"c"):
        answers.write(piece)
    assert wire.pieces == [HEAD + b"a", b"bc"]


@on_both_loops
async def test_closing_flushes_buffered_data_and_aborting_drops_it() -> None:
    closed, aborted = Wire(), Wire()
    for wire, end in ((closed, WriteCoalescingTransport.close), (aborted, WriteCoalescingTransport.abort)):
        answers = kept(wire)
        answers.write(HEAD)
        end(answers)
        assert answers.is_closing()
        await asyncio.sleep(0)
    assert (closed.pieces, aborted.pieces) == ([HEAD], [])


@on_both_loops
async def test_disconnected_caller_gets_no_answer() -> None:
    wire = Wire()
    kept(wire).write(HEAD)
    wire.close()
    await asyncio.sleep(0)
    assert wire.pieces == []


@on_both_loops
async def test_nothing_is_written_once_the_connection_closes() -> None:
    wire = Wire()
    answers = kept(wire)
    answers.write(HEAD)
    wire.close()
    answers.write(BODY)
    answers.write(BODY)
    await asyncio.sleep(0)
    assert (wire.pieces, answers.get_write_buffer_size()) == ([], 0)


@on_both_loops
async def test_buffered_head_is_sent_before_eof() -> None:
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    reader, writer = await asyncio.open_connection(sock=theirs)
    answers = WriteCoalescingTransport(transport, loop)
    assert answers.can_write_eof()
    answers.write(HEAD)
    answers.write_eof()
    assert await reader.read() == HEAD
    answers.close()
    writer.close()
    await writer.wait_closed()
