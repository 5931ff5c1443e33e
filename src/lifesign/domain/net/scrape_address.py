"""Scrape addresses: where a metrics server, such as Prometheus, connects for a URL."""

from ipaddress import IPv6Address, ip_network
from typing import Final

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.net.allowed_addresses import AddressRefused, Network, Scheme, vet_url

ALL_NETWORKS: Final[tuple[Network, ...]] = (ip_network("0.0.0.0/0"), ip_network("::/0"))
"""Metrics endpoints are usually in the agents' own network: private addresses are common."""


@fast_dataclass()
class ScrapeAddress:
    """Host and port for a metrics server such as Prometheus, in the form that it expects."""

    scheme: Scheme
    host_and_port: str
    """An IPv6 address is in brackets; the port is always present."""


def scrape_address(url: str) -> ScrapeAddress | AddressRefused:
    """Return host and port of a URL for a metrics server, or the reason why it must not be contacted.

    Refused are URLs with credentials, and addresses that may never be contacted, such as cloud metadata.
    """
    found = vet_url(url, ALL_NETWORKS)
    if isinstance(found, AddressRefused):
        return found
    host = f"[{found.host}]" if isinstance(found.address, IPv6Address) else found.host
    return ScrapeAddress(found.scheme, f"{host}:{found.port}")
