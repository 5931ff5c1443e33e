"""`lifesign agents link`."""

import asyncio
import json

import pytest
from tests.support.registry_server import ADMIN_KEY, RegistryServer

from lifesign.cli import main
from lifesign.client import RegistryClient
from lifesign.domain.targets.target import target_id

Captured = pytest.CaptureFixture[str]
URL = "https://agent.example/"


@pytest.fixture
def agent(registry: RegistryServer) -> str:
    """Return the id of an agent that registered with the URL of a listed target."""

    async def fill() -> None:
        async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
            await client.directories.put("dir", [URL])
            await client.agents.register("billing-1", card_url=URL)

    asyncio.run(fill())
    return "billing-1"


def test_token_is_shown_with_the_url_at_which_to_serve_it(agent: str, capsys: Captured) -> None:
    assert main(["agents", "link", agent, URL, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {"target_id", "url", "token", "proof_url", "requested_at", "expires_at"}
    assert shown["token"].startswith("ahl_")
    assert main(["agents", "link", agent, URL]) == 0
    page = capsys.readouterr().out
    assert f"{target_id(URL)} ({URL})" in page
    assert shown["token"] in page
    assert shown["proof_url"] in page


def test_url_that_no_directory_lists_is_refused(agent: str, capsys: Captured) -> None:
    assert main(["agents", "link", agent, "https://other.example/"]) == 1
    assert "(invalid_request)" in capsys.readouterr().err


def test_link_with_a_url_instead_of_an_agent_id_is_wrong_usage(agent: str, capsys: Captured) -> None:
    assert agent
    assert main(["agents", "link", URL, URL]) == 3
    assert "AGENT_ID" in capsys.readouterr().err
