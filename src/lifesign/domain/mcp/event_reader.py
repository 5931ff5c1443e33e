"""Events of a stream that is still arriving."""

from lifesign.domain.mcp.conversation import EVENT_STREAM, MAX_EVENTS, read_reply
from lifesign.domain.parsing.event_framing import end_of_last_event, named_events


class EventReader:
    """Cuts a stream into whole events. The caller bounds its bytes."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._rest = bytearray()
        self._events = 0

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        """Return the events that a piece completes: name and data. None comes after MAX_EVENTS."""
        whole = self.take(piece)
        found = list(named_events(whole)) if whole else []
        found = found[: MAX_EVENTS - self._events]
        self._events += len(found)
        return found

    def take(self, piece: bytes) -> bytes:
        """Return the bytes of all events that a piece completes."""
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
    """Finds the answer to one request in a stream."""

    def __init__(self, request_id: int) -> None:
        """`request_id`: see `McpRequest`."""
        self._request_id = request_id
        self._reader = EventReader()

    def feed(self, piece: bytes) -> bool:
        """Return whether the answer has arrived, so that no more has to be read."""
        whole = self._reader.take(piece)
        return bool(whole) and read_reply(EVENT_STREAM, whole, self._request_id).is_answer
