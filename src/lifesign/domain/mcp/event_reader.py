"""Events of a stream that is still arriving."""

from lifesign.domain.mcp.conversation import EVENT_STREAM, MAX_EVENTS, read_reply
from lifesign.domain.parsing.event_framing import end_of_last_event, named_events


class EventReader:
    """Splits an event stream (SSE) into events. The caller limits the number of bytes."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._rest = bytearray()
        self._events = 0

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        """Return the events that this piece completes: name and data. At most MAX_EVENTS in total."""
        whole = self.take(piece)
        found = list(named_events(whole)) if whole else []
        found = found[: MAX_EVENTS - self._events]
        self._events += len(found)
        return found

    def take(self, piece: bytes) -> bytes:
        """Return the bytes of the events that this piece completes."""
        rest = self._rest
        # Earlier bytes were searched already, so that the whole takes linear time.
        end = end_of_last_event(bytes(rest[-1:]), piece)
        if not end:
            rest += piece
            return b""
        whole = bytes(rest) + piece[:end]
        rest[:] = piece[end:]
        return whole


class ReplyReader:
    """Finds the answer to one JSON-RPC request in an event stream (SSE)."""

    def __init__(self, request_id: int) -> None:
        """`request_id`: see `McpRequest`."""
        self._request_id = request_id
        self._reader = EventReader()

    def feed(self, piece: bytes) -> bool:
        """Process a piece of the stream; return whether the answer is complete, so that no more is needed."""
        whole = self._reader.take(piece)
        return bool(whole) and read_reply(EVENT_STREAM, whole, self._request_id).is_answer
