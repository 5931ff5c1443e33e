"""Agents named by id or URL."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from lifesign.errors import InvalidValue

if TYPE_CHECKING:
    from lifesign.domain.models.targets import TargetList

PAGE: Final = 1_000
MAX_PAGES: Final = 10
"""Maximum number of pages of one host's targets that are searched.

Beyond that, only an exact id finds an agent.

"""
MAX_NAMED: Final = 5
"""Maximum number of ids in a message about several targets with one URL."""

T = TypeVar("T")


class ListsTargets(Protocol):
    """Lists targets by host: a client of a registry, or the database of a crawl."""

    async def list(self, *, limit: int, cursor: str | None, host: str, include_gone: bool) -> "TargetList":
        """Return one page of the targets on a host."""
        ...


def is_url(given: str) -> bool:
    """Return whether a text is a URL, with or without a scheme: an id has no slash."""
    return "/" in given


def check_id(given: str) -> None:
    """Raise InvalidValue if a URL is given to a command that needs the id of an agent."""
    if is_url(given):
        raise InvalidValue(
            "AGENT_ID", given, "the id of an agent instead of a URL: `lifesign agents show URL` shows the id"
        )


async def with_agent_id(function: Callable[[str], Awaitable[T]], targets: ListsTargets, given: str) -> T:
    """Call a function with the id of the agent that an id or URL names; return the function's result.

    A possible id is first tried as one. A URL is known if it is probed: listed by a directory, or the card
    URL of an agent that registered itself for probes; any spelling is accepted. Raise InvalidValue if it is
    no URL, or that of several targets; TargetNotFound if it is unknown; else what `function` raises, which
    must be NotFound or TargetNotFound for an unknown id.
    """
    from lifesign.client.registry_errors import NotFound  # noqa: PLC0415 - pydantic takes 60 ms
    from lifesign.domain.net.allowed_addresses import AddressRefused, without_password  # noqa: PLC0415
    from lifesign.domain.targets.target import read_target  # noqa: PLC0415
    from lifesign.registry.errors import TargetNotFound  # noqa: PLC0415

    url = read_target(given)
    # The registry would read an id with a slash as a part of another path.
    if is_url(given):
        if isinstance(url, AddressRefused):
            shown = without_password(given)
            raise InvalidValue("URL", shown, f"an agent's URL ({url.reason})")
        known = await _ids_at(url, targets)
        if not known:
            raise TargetNotFound(given)
    else:
        try:
            return await function(given)
        except (NotFound, TargetNotFound):
            # A single word is an unknown id; a host has a dot or a port.
            if isinstance(url, AddressRefused) or not any(mark in given for mark in ".:"):
                raise
            known = await _ids_at(url, targets)
            if not known:
                raise
    if len(known) > 1:
        named = ", ".join(known[:MAX_NAMED]) + (", ..." if len(known) > MAX_NAMED else "")
        raise InvalidValue("URL", given, f"the id of one of the agents with this URL: {named}")
    return await function(known[0])


async def _ids_at(url: str, targets: ListsTargets) -> list[str]:
    """Return the ids of the targets at a URL; former ones only if there are no others."""
    from lifesign.domain.targets.target import host_of, target_id  # noqa: PLC0415 - loaded by now

    probed: list[str] = []
    former_ids: list[str] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await targets.list(limit=PAGE, cursor=cursor, host=host_of(url), include_gone=True)
        for target in page.targets:
            if target.url == url:
                (probed if target.gone_at is None else former_ids).append(target.target_id)
        cursor = page.cursor
        if cursor is None:
            return probed or former_ids
    return probed or former_ids or [target_id(url)]
