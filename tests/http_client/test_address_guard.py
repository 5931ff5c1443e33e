"""Address guard."""

from ipaddress import ip_address

import pytest
from yarl import URL

from lifesign.domain.net.allowed_addresses import AddressRefused, TargetUrl, read_networks
from lifesign.http_client.address_guard import AddressGuard

PUBLIC, PUBLIC_6, PRIVATE = "93.184.215.14", "2606:4700::1", "10.1.2.3"


@pytest.mark.parametrize(
    ("is_public_allowed", "vetted"),
    [(True, [PUBLIC, PUBLIC_6, PRIVATE]), (False, [PRIVATE])],
)
def test_guard_without_contact_allows_only_allowed_networks(
    *, is_public_allowed: bool, vetted: list[str]
) -> None:
    guard = AddressGuard(read_networks(["10.0.0.0/8"]), is_public_allowed=is_public_allowed)
    found, refused = guard.vetted(map(ip_address, (PUBLIC, PUBLIC_6, PRIVATE)))
    assert [str(address) for address in found] == vetted
    assert (refused is None) is is_public_allowed
    kind = TargetUrl if is_public_allowed else AddressRefused
    assert isinstance(guard.vet_url(URL(f"https://{PUBLIC}/")), kind)
    # Addresses of a name are vetted when they are known.
    assert isinstance(guard.vet_url(URL("https://agent.example/")), TargetUrl)


def test_allowed_public_network_needs_no_contact() -> None:
    guard = AddressGuard(read_networks(["93.184.215.0/24"]), is_public_allowed=False)
    assert isinstance(guard.vet_url(URL(f"https://{PUBLIC}/")), TargetUrl)
    mapped = f"::ffff:{PUBLIC}"
    assert guard.vetted([ip_address(mapped)]) == ([ip_address(mapped)], None)
