"""Reading of the published interface in a probe, and whether it has changed.

A card that is the same byte for byte is not read again, nor are tools with the same JSON: unchanged content
costs at most a digest.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from lifesign.domain.a2a.interfaces import AgentInterface
from lifesign.domain.credentials.secret import Scrubber
from lifesign.domain.observation.probe_memory import MAX_IN_ROW
from lifesign.domain.published_interface.card_interface import read_card_interface
from lifesign.domain.published_interface.published import Interface, canonical
from lifesign.domain.published_interface.tool_interface import tool_interface
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.probe.session import ProbeSession


def note_same_interface(visit: ProbeSession) -> None:
    """Record that the published interface is unchanged."""
    if visit.entry.memory.interface_changes:
        visit.learned["interface_changes"] = 0


def note_card(visit: ProbeSession, fetched: Fetched, digest: str, places: Sequence[AgentInterface]) -> None:
    """Record the published interface in a card. `digest` is that of its bytes, `places` those to call."""
    memory = visit.entry.memory
    if memory.interface_digest is not None and digest == memory.card_digest:
        note_same_interface(visit)
        return
    interface = read_card_interface(fetched.body, places)
    # In lower case, other letters than those of a secret may become it.
    if interface is not None and not fetched.scrubber.is_quoted_in(interface.text):
        note_interface(visit, interface)


def note_tools(visit: ProbeSession, tools: Sequence[Mapping[str, Any]], scrubber: Scrubber) -> None:
    """Record the published interface of an MCP server, from its complete list of tools.

    `scrubber` has the secrets that the server received.
    """
    memory = visit.entry.memory
    try:
        digest = sha256(canonical(tools).encode()).hexdigest()
    except RecursionError:
        # Without a digest, the tools are normalised at each reading.
        digest = None
    if digest is not None and memory.interface_digest is not None and digest == memory.card_digest:
        note_same_interface(visit)
        return
    visit.learned["card_digest"] = digest
    interface = tool_interface(tools)
    # In the form of an interface, another number than a secret of digits may become it.
    if not scrubber.is_quoted_in(interface.text):
        note_interface(visit, interface)


def note_interface(visit: ProbeSession, interface: Interface) -> None:
    """Record a published interface, which is reported if it differs from the last one."""
    memory = visit.entry.memory
    if interface.digest == memory.interface_digest:
        note_same_interface(visit)
        return
    visit.interface = interface
    visit.learned["interface_digest"] = interface.digest
    if memory.interface_digest is not None:
        visit.learned["interface_changes"] = min(memory.interface_changes + 1, MAX_IN_ROW)
