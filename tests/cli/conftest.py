"""Fixtures of the tests of commands."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.registry_server import ADMIN_KEY, RegistryServer, registry_server
from tests.support.repeated_set_up import upgrade_connection

from lifesign.client.environment_variables import KEY_VARIABLE, URL_VARIABLE
from lifesign.prober.definition import lag_limits
from lifesign.storage.engine import schema_version


@pytest.fixture(autouse=True)
def believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept a prober's results also if the machine of the tests stands still for seconds."""
    monkeypatch.setattr(lag_limits.SelfCheck, "slowness_since", lambda *_: None)


@pytest.fixture(autouse=True)
def repeated_set_up(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create the tables of a new database by the same statements; tests of `lifesign database` migrate it."""
    if not request.path.name.startswith("test_database"):
        monkeypatch.setattr(schema_version, "upgrade_connection", upgrade_connection)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistryServer]:
    """A real registry on loopback, which the environment names together with an admin key."""
    monkeypatch.setenv(KEY_VARIABLE, ADMIN_KEY)
    with registry_server(tmp_path) as server:
        monkeypatch.setenv(URL_VARIABLE, server.url)
        yield server
