"""Fixtures of the tools."""

from collections.abc import Iterator

import pytest
from tests.support.registry_server import RegistryServer, registry_server


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """A real registry on loopback, one for all tests of a file: their agents have different names.

    It does not look for silence, and ends no drain, while a test looks.
    """
    with registry_server(tmp_path_factory.mktemp("registry"), sweep_seconds=60) as server:
        yield server
