"""Fixtures of the registry's client."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.registry_server import ADMIN_KEY, RegistryServer, registry_server

from lifesign.client import RegistryClient


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryServer]:
    """A real registry on loopback, with a key for each role and nothing else in it."""
    with registry_server(tmp_path) as server:
        yield server


@pytest.fixture
async def client(registry: RegistryServer) -> AsyncIterator[RegistryClient]:
    """A client with an admin key."""
    async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
        yield client
