"""Notice about suspended decisions before a status is shown."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lifesign.client import RegistryClient

SUSPENDED_TEXT = (
    "verdicts are suspended: missed heartbeats change no status now, so an agent that is shown as active "
    "may be down. lifesign monitor show has the reason (docs/registry.md, section 2)"
)


async def are_decisions_suspended(client: "RegistryClient") -> bool | None:
    """Return whether verdicts are suspended; None if unknown, as with an agent's own key."""
    from lifesign.client.registry_errors import RegistryError  # noqa: PLC0415 - loaded by now

    try:
        monitor = await client.monitor.get()
    except RegistryError:
        return None
    return monitor.state == "suspended"


def say_suspended(*, is_suspended: bool | None) -> None:
    """Write a notice to standard error if verdicts are suspended."""
    if is_suspended:
        sys.stderr.write(f"lifesign: {SUSPENDED_TEXT}\n")
