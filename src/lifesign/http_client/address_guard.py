"""Address guard: which URLs and addresses an HTTP client may contact (SSRF guard).

A name is resolved, each of its addresses is vetted, and the connection goes to a vetted address: a name that
leads elsewhere a moment later changes nothing. Each hop of a redirect is vetted like the first URL.
"""

from collections.abc import Iterable, Sequence

import aiohttp
from yarl import URL

from lifesign.domain.net.allowed_addresses import (
    Address,
    AddressRefused,
    Network,
    TargetUrl,
    is_in,
    vet_address,
    vet_url,
)
from lifesign.domain.observation.results import ResultClass
from lifesign.http_client.redirects import MAX_SHOWN_CHARS


class PrivateAddressRefused(aiohttp.ClientError):
    """A URL or name leads to an address that must not be contacted. Nothing was sent."""

    result = ResultClass.BLOCKED_ADDRESS

    def __init__(self, host: str, refused: AddressRefused) -> None:
        """`host` is quoted in ASCII."""
        super().__init__(f"{host[:MAX_SHOWN_CHARS]!a} is not contacted: {refused.reason}")
        self.refused = refused


class AddressGuard:
    """Decides which URLs and addresses may be contacted: public ones, and those of allowed networks."""

    def __init__(self, allowed: Sequence[Network] = (), *, is_public_allowed: bool = True) -> None:
        """`allowed`: networks that may be contacted besides the public internet.

        `is_public_allowed`: False if the public internet may not be contacted, for want of a contact.
        """
        self._allowed = tuple(allowed)
        self._is_public_allowed = is_public_allowed

    def vet_url(self, url: URL) -> TargetUrl | AddressRefused:
        """Return the host and port of a URL that may be contacted, or the reason why it may not be."""
        target = _read_alike(url, vet_url(str(url), self._allowed))
        if isinstance(target, AddressRefused) or target.address is None:
            return target
        return self._refuse_public(target.address) or target

    def vetted(self, found: Iterable[Address]) -> tuple[list[Address], AddressRefused | None]:
        """Return the addresses that may be contacted, and why the first of the others may not be."""
        vetted: list[Address] = []
        first_refused: AddressRefused | None = None
        for address in found:
            refused = vet_address(address, self._allowed) or self._refuse_public(address)
            if refused is None:
                vetted.append(address)
            first_refused = first_refused or refused
        return vetted, first_refused

    def _refuse_public(self, address: Address) -> AddressRefused | None:
        if self._is_public_allowed or is_in(address, self._allowed):
            return None
        return AddressRefused("blocked_address", f"{address} is public, and no contact is configured")


def _read_alike(url: URL, target: TargetUrl | AddressRefused) -> TargetUrl | AddressRefused:
    """Refuse a URL in which the guard reads another scheme, host or port than the sender of the request."""
    if isinstance(target, AddressRefused):
        return target
    host = (url.raw_host or "").removesuffix(".")
    if (url.scheme, host, url.port) == (target.scheme, target.host, target.port):
        return target
    return AddressRefused(
        "invalid_url", "the URL is ambiguous: its scheme, host or port can be read in two ways"
    )
