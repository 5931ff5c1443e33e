"""Fixtures of agents."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.registry_server import RegistryServer, registry_server


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryServer]:
    """A real registry on loopback, with a key for each role and nothing else in it."""
    with registry_server(tmp_path) as server:
        yield server
