"""Shapes of events that decide nothing, so that the next event of the same shape needs no parsing."""

import re
from typing import Final

_LF = 10
_CR = 13
MAX_SHAPED_BYTES: Final = 4096
"""Longer events of a known shape are still read."""
_MAX_PREFIX_BYTES = 512

# The groups are atomic: `re` of Python before 3.11.5 misreads a group with a possessive repeat.
# The beginning of an event that surely is an artifact's update, or a task's in the state at its end.
_MEMBERS = (
    rb'(?>(?:(?!"(?:result|error|task|statusUpdate|status|state|artifactUpdate|artifact)")'
    rb'"[^"\\]*+": ?+(?:"[^"\\]*+"|[-+.0-9a-zA-Z]++), ?+)*)'
)
_STATE = rb'"status": ?+\{' + _MEMBERS + rb'"state": ?+"[^"\\]*+"'
_REST_UPDATE = rb'(?:"artifactUpdate": ?+\{|"statusUpdate": ?+\{' + _MEMBERS + _STATE + rb")"
# Without a member name of A2A around it, an artifact or a status beside an error may belong to another
# protocol.
_UPDATE = re.compile(
    rb"data: ?+\{" + _MEMBERS + rb"(?:" + _REST_UPDATE + rb'|"result": ?+\{' + _MEMBERS + rb"(?:"
    + _REST_UPDATE + rb'|"artifact": ?+\{|(' + _STATE + rb")))"
)  # fmt: skip
_FINAL = b'"final":'
_MAY_DECIDE = (b'"error"', b'"isError"')
_CLOSING = re.compile(rb"(?<![}\]])[}\]]++(\r\n\r\n|\n\n)\Z")

Shape = tuple[slice, bytes, slice, bytes, slice]
"""Common form of the events of one stream that do not change its outcome.

An event has a shape (head, prefix, tail, suffix, inside) if it has `prefix` at `head`, `suffix` at `tail` and
no LF or CR at `inside`: it is one line of data, and its deciding members are in the prefix. An event of more
than MAX_SHAPED_BYTES has nothing at `tail`. This is a plain tuple: unpacking another type takes 80 ns longer.
"""


def has_shape(shape: Shape, piece: bytes) -> bool:
    """Return whether these bytes are one event of this shape, which does not have to be parsed."""
    head, prefix, tail, suffix, inside = shape
    if piece[head] != prefix or piece[tail] != suffix:
        return False
    line = piece[inside]
    return _LF not in line and _CR not in line


def shape_of(event: bytes) -> Shape | None:
    """Return the shape of a parsed event that decides nothing, to skip similar ones; None if it has none."""
    if any(name in event for name in _MAY_DECIDE):
        # Their values may be others in the next one.
        return None
    begins, ends = _UPDATE.match(event, 0, _MAX_PREFIX_BYTES), _CLOSING.search(event, max(0, len(event) - 64))
    if begins is None or ends is None or begins.end() > ends.start():
        return None
    prefix, suffix, line_ends = begins[0], ends[0], ends[1]
    if begins[1] and _FINAL not in prefix:
        # In A2A 0.x, the next event may be the last one of the same state.
        return None
    head, tail = slice(len(prefix)), slice(-len(suffix), MAX_SHAPED_BYTES)
    return head, prefix, tail, suffix, slice(len(prefix), -len(line_ends))
