"""Fixtures of the adapter."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.adapting import World, world_of
from tests.support.registry_server import RegistryServer, registry_server
from tests.support.upstream_tools import HttpUpstream, http_upstream


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """A real registry on loopback, one for all tests of a file: their agents have different names."""
    with registry_server(tmp_path_factory.mktemp("registry"), sweep_seconds=60) as server:
        yield server


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpUpstream]:
    """A real server of tools on loopback."""
    with http_upstream(tmp_path_factory.mktemp("upstream") / "record") as server:
        yield server


@pytest.fixture
async def world(registry: RegistryServer, tmp_path: Path) -> AsyncIterator[World]:
    """A task for a pool; none is left in the queue."""
    async with world_of(registry, tmp_path) as world:
        yield world
