"""Faults below HTTP: packet filters in a network namespace of the scenario's own."""

import asyncio
import subprocess
from collections.abc import Iterable
from typing import Final

from tests.fleet.hosts import CANARIES, INBOUND, NAME_SERVER, address_of
from tests.fleet.script import Action, How

_TABLE: Final = "inet fleet"
_SETUP: Final = f"""
table {_TABLE} {{
    set dropped {{ type ipv4_addr; flags interval; auto-merge; }}
    set rejected {{ type ipv4_addr; flags interval; auto-merge; }}
    chain out {{
        type filter hook output priority 0; policy accept;
        ip daddr @dropped drop
        ip saddr @dropped drop
        ip daddr @rejected reject with icmp type host-unreachable
    }}
}}
"""


class NamespaceMissing(Exception):
    """The process runs in the machine's own network: no fault may be injected there."""


def set_up() -> None:
    """Bring loopback up and load an empty packet filter; NamespaceMissing outside of a namespace."""
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    if len(links.strip().splitlines()) != 1:
        raise NamespaceMissing("expected a network namespace with loopback alone: unshare --net")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["nft", "-f", "-"], input=_SETUP, text=True, check=True)


async def cut(action: Action, agents: Iterable[int], *, are_all: bool) -> None:
    """Cut off the hosts of an action."""
    if action.how is How.NAMES:
        addresses = [NAME_SERVER]
    else:
        addresses = [address_of(number) for number in agents]
        addresses += CANARIES if action.has_canaries or are_all else []
    await _nft(f"add element {_TABLE} {_set_of(action.how)} {{ {', '.join(addresses)} }}")


async def cut_inbound() -> None:
    """Drop what heartbeat agents send to the registry."""
    await _nft(f"add element {_TABLE} dropped {{ {INBOUND} }}")


async def heal() -> None:
    """Undo every cut."""
    await _nft(f"flush set {_TABLE} dropped\nflush set {_TABLE} rejected")


def _set_of(how: How) -> str:
    return "rejected" if how is How.REJECT else "dropped"


async def _nft(commands: str) -> None:
    process = await asyncio.create_subprocess_exec("nft", "-f", "-", stdin=asyncio.subprocess.PIPE)
    await process.communicate(commands.encode())
    if process.returncode:
        raise RuntimeError(f"nft refused: {commands}")
