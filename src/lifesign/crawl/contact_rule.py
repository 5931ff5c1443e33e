"""The rule that a crawl of public addresses has a contact, checked before any request."""

from collections.abc import AsyncIterator, Iterable
from typing import Final

from lifesign.crawl.list_identity import listed_in
from lifesign.domain.net.allowed_addresses import Network, is_public
from lifesign.errors import InvalidValue
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.directories import Snapshot, read_directory

CONTACT_EXAMPLE: Final = "mailto:you@example.org"


async def require_contact(definition: ProbeDefinition) -> None:
    """Refuse a definition without a contact that leads to public addresses.

    Reads its lists on this machine and sends no request. Raises InvalidValue for `contact`, with the first
    public URL.
    """
    if definition.has_contact:
        return
    async for url in _urls(definition):
        if is_public(url, definition.networks_allowed):
            raise InvalidValue(
                "contact",
                None,
                f"your address for the operators of the probed agents, such as {CONTACT_EXAMPLE}, because "
                f"{url} is public: only literal addresses in allowed networks and localhost need no contact",
            )


def first_public(urls: Iterable[str], allowed: tuple[Network, ...]) -> str | None:
    """Return the first URL that may lead to a public address, None if there is none."""
    return next((url for url in urls if is_public(url, allowed)), None)


async def _urls(definition: ProbeDefinition) -> AsyncIterator[str]:
    """Yield every URL that the definition, or a list on this machine, names."""
    for url in definition.target_urls:
        yield url
    for canaries in definition.canaries_by_class.values():
        for canary in canaries:
            yield canary.url
    for source in definition.directories:
        if source.url is not None:
            yield source.url
            continue
        read = await read_directory(listed_in(source, definition))
        # The import reports a list that cannot be read.
        for entry in read.entries if isinstance(read, Snapshot) else ():
            yield entry.url
