import pytest

from lifesign.domain.net.allowed_addresses import AddressRefused
from lifesign.domain.net.scrape_address import ScrapeAddress, scrape_address


@pytest.mark.parametrize(
    ("url", "scheme", "host_and_port"),
    [
        ("http://Agent.Example/a2a?x=1", "http", "agent.example:80"),
        ("https://agent.example", "https", "agent.example:443"),
        ("https://agent.example:8443/", "https", "agent.example:8443"),
        ("http://10.0.0.1:9000/", "http", "10.0.0.1:9000"),
        ("http://localhost:9000/", "http", "localhost:9000"),
        ("http://[fd12::1]:9000/", "http", "[fd12::1]:9000"),
        ("http://[fd12::1]/", "http", "[fd12::1]:80"),
    ],
)
def test_host_and_port_are_always_present(url: str, scheme: str, host_and_port: str) -> None:
    found = scrape_address(url)
    assert isinstance(found, ScrapeAddress)
    assert (found.scheme, found.host_and_port) == (scheme, host_and_port)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:secret@agent.example/",
        "http://169.254.169.254/",
        "http://[fd00:ec2::254]/",
        "http://224.0.0.1/",
        "ftp://agent.example/",
        "agent.example",
        "http://agent.example:0/",
        "http://agent.example\n/",
        "",
    ],
)
def test_an_address_that_is_never_contacted_is_refused(url: str) -> None:
    assert isinstance(scrape_address(url), AddressRefused)
