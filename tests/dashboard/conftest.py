"""The registry that the pages show."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.dashboard_sample import KEYS, fill
from tests.support.dashboard_visitor import Visitor
from tests.support.registry_server import RegistryServer, registry_server

from lifesign.dashboard.routes import Dashboard
from lifesign.domain.access.permissions import Role


@dataclass(frozen=True)
class Sample:
    """A server with one of every kind."""

    server: RegistryServer
    tasks: dict[str, str]
    """Ids, by the state that each is in."""
    sessions: dict[Role, dict[str, str]] = field(default_factory=dict)
    """Cookies, by the role that is logged in: logins are few."""

    def visitor(self, role: Role | None = None) -> Visitor:
        """Return a new visitor, or one that is logged in with a role's key."""
        visitor = Visitor(self.server.url)
        if role is not None and role not in self.sessions:
            answer = visitor.log_in(KEYS[role])
            assert answer.status == 303, answer.text
            self.sessions[role] = visitor.cookies
        if role is not None:
            visitor.cookies = dict(self.sessions[role])
        return visitor

    def start_a_prober(self) -> None:
        """Let a prober work from now on."""
        sent = {"x-api-key": KEYS[Role.PROBER], "content-type": "application/json"}
        claim = json.dumps({"worker": "prober-1", "ttl_seconds": 60}).encode()
        claimed = self.visitor()._ask("POST", "/api/v1/shards/claim", claim, sent)
        assert claimed.status == 200, claimed.body


@dataclass(frozen=True)
class Filled:
    """A database with one of every kind, to be copied."""

    file: Path
    tasks: dict[str, str]

    @contextmanager
    def served(self, directory: Path, **settings: object) -> Iterator[Sample]:
        """Serve a copy of it."""
        shutil.copy(self.file, directory / self.file.name)
        with registry_server(directory, face=Dashboard, **settings) as server:
            yield Sample(server, self.tasks)


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """The events before the first page is read."""
    directory = tmp_path_factory.mktemp("filled")
    tasks = asyncio.run(fill(directory))
    return Filled(directory / "registry.db", tasks)


@pytest.fixture(scope="session")
def sample(filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    """A server whose pages require a key."""
    with filled.served(tmp_path_factory.mktemp("dashboard")) as served:
        yield served


@pytest.fixture(scope="session")
def open_sample(filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    """A server that everyone may read."""
    with filled.served(tmp_path_factory.mktemp("open-dashboard"), open_dashboard=True) as served:
        yield served


@pytest.fixture
def mutable_sample(filled: Filled, tmp_path: Path) -> Iterator[Sample]:
    """A separate server, whose data a test may change."""
    with filled.served(tmp_path) as served:
        yield served
