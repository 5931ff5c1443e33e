"""Requests for the OAuth metadata of a target, and the login that an observation shows."""

import json
from typing import Any

import pytest
from tests.support.agent_check import card
from tests.support.hostile_server import CARD_PATH, HostileServer, answer, as_json, serving
from tests.support.probing import Played, always, definition, entry, probing

from lifesign.domain.observation.login import METADATA_PATH, MetadataResult
from lifesign.domain.observation.results import Observation, ResultClass
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.network.host_limiter import AddressBusy
from lifesign.prober.network.request import Request
from lifesign.prober.probe.steps import Prober

RPC, ELSEWHERE = "/rpc", "https://login.example"
AT_RPC = METADATA_PATH + RPC
DAY_SECONDS = 86_400.0
NOW_S = 1_800_000_000.0


def metadata(server: HostileServer, **members: Any) -> dict[str, Any]:
    return {"resource": server.url + RPC, "authorization_servers": [ELSEWHERE]} | members


def gate(server: HostileServer, challenge: str | None = "Bearer", status: int = 401) -> None:
    server.replies[RPC] = answer(status) if challenge is None else answer(status, WWW_Authenticate=challenge)
    schemes = {"a": {"type": "oauth2", "flows": {}}}
    server.replies[CARD_PATH] = as_json(card(url=server.url + RPC, securitySchemes=schemes))


def result(observation: Observation) -> str | None:
    login = observation.login
    return None if login is None or login.metadata is None else login.metadata.result.value


async def probe_once(server: HostileServer) -> Observation:
    async with probing(ask={}) as probes:
        return await probes.see(server.url)


async def test_metadata_is_requested_at_the_well_known_path_plus_interface_path() -> None:
    async with serving({}) as server:
        gate(server)
        server.replies[AT_RPC] = as_json(metadata(server, scopes_supported=["read"]))
        login = (await probe_once(server)).login
    assert login is not None
    assert (login.schemes, login.card_schemes) == (("bearer",), ("oauth2",))
    assert login.metadata is not None
    assert login.metadata.model_dump() == {
        "result": MetadataResult.OK,
        "reason": "",
        "authorization_servers": (ELSEWHERE,),
        "scopes": ("read",),
    }


async def test_metadata_is_requested_at_the_root_if_the_path_has_none() -> None:
    async with serving({}) as server:
        gate(server)
        server.replies[METADATA_PATH] = as_json(metadata(server, resource=server.url))
        assert result(await probe_once(server)) == "ok"
        assert [path for path in server.paths if path.startswith(METADATA_PATH)] == [AT_RPC, METADATA_PATH]


async def test_metadata_url_in_the_challenge_replaces_the_well_known_paths() -> None:
    async with serving({}) as server:
        gate(server, f'Bearer resource_metadata="{server.url}/elsewhere"')
        server.replies["/elsewhere"] = as_json(metadata(server))
        assert result(await probe_once(server)) == "ok"
        assert not any(path.startswith(METADATA_PATH) for path in server.paths)


async def test_metadata_on_another_origin_is_not_requested() -> None:
    async with serving({}) as other, serving({}) as server:
        gate(server, f'Bearer resource_metadata="{other.url}/metadata"')
        server.replies[AT_RPC] = as_json(metadata(server, authorization_servers=[other.url]))
        assert result(await probe_once(server)) == "ok"
        assert not other.heads


async def test_login_on_another_origin_is_reported_with_its_origin() -> None:
    async with serving({}) as other, serving({}) as server:
        gate(server)
        login = (await probe_once(server)).login
        assert login is not None
        assert login.origin is None
        gate(other)
        server.replies[CARD_PATH] = as_json(card(url=other.url + RPC))
        observation = await probe_once(server)
    assert observation.login is not None
    assert observation.login.origin == other.url
    assert observation.result_with_card(None) is ResultClass.OK
    assert observation.transport is not None
    assert observation.transport.result is ResultClass.GATED


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", "invalid"),
        (b"[]", "invalid"),
        (b'{"resource": "https://agent.example", "authorization_servers": ["https://x.example"]}', "invalid"),
    ],
)
async def test_metadata_that_breaks_a_rule_is_invalid(body: bytes, expected: str) -> None:
    async with serving({}) as server:
        gate(server)
        server.replies[AT_RPC] = answer(200, body, Content_Type="application/json")
        assert result(await probe_once(server)) == expected


async def test_html_page_is_no_metadata() -> None:
    async with serving({}) as server:
        gate(server)
        page = answer(200, b"<html>", Content_Type="text/html")
        server.replies |= {AT_RPC: page, METADATA_PATH: page}
        assert result(await probe_once(server)) == "missing"


async def test_server_error_for_the_metadata_leaves_them_unknown() -> None:
    async with serving({}) as server:
        gate(server)
        server.replies[AT_RPC] = answer(503)
        observation = await probe_once(server)
    assert observation.login is not None
    assert observation.login.metadata is None


async def test_endless_metadata_body_leaves_them_unknown() -> None:
    async with serving({}) as server:
        gate(server)
        server.replies[AT_RPC] = answer(200, b" " * 70_000, Content_Type="application/json")
        observation = await probe_once(server)
    assert observation.login is not None
    assert observation.login.metadata is None


@pytest.mark.parametrize(("challenge", "status"), [(None, 401), ("Basic", 401), ("Bearer", 403)])
async def test_metadata_is_read_only_after_a_challenge_of_oauth(challenge: str | None, status: int) -> None:
    async with serving({}) as server:
        gate(server, challenge, status)
        observation = await probe_once(server)
        assert observation.login is not None
        assert observation.login.metadata is None
        assert not any(path.startswith(METADATA_PATH) for path in server.paths)


async def test_an_agent_without_a_login_has_none() -> None:
    async with serving({}) as server:
        gate(server)
        server.replies[RPC] = answer(405)
        assert (await probe_once(server)).login is None


async def test_metadata_is_remembered_for_a_day() -> None:
    async with serving({}) as server:
        gate(server)
        server.replies[AT_RPC] = as_json(metadata(server))
        async with probing(ask={}) as probes:
            for after_s in (0.0, 600.0, DAY_SECONDS + 1):
                assert result(await probes.see(server.url, at_s=NOW_S + after_s)) == "ok"
        assert server.paths.count(AT_RPC) == 2


async def test_metadata_request_carries_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_TOKEN", "canary-of-the-lab")
    async with serving({}) as server:
        gate(server)
        server.replies[AT_RPC] = as_json(metadata(server, authorization_servers=[server.url]))
        lab = {"name": "lab", "origin": server.url, "bearer": {"env": "LAB_TOKEN"}}
        async with probing(ask={}, credentials=[lab]) as probes:
            observation = await probes.see(server.url)
        assert result(observation) == "ok"
        assert "authorization" in server.asked(RPC)
        assert "authorization" not in server.asked(AT_RPC)


async def test_a_secret_in_the_challenge_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_TOKEN", "canary-of-the-lab")
    async with serving({}) as server:
        gate(server, 'Bearer realm="canary-of-the-lab", canary-of-the-lab')
        lab = {"name": "lab", "origin": server.url, "bearer": {"env": "LAB_TOKEN"}}
        async with probing(ask={}, credentials=[lab]) as probes:
            observation = await probes.see(server.url)
            memory = probes.memory.to_json()
    assert observation.login is not None
    assert "canary" not in observation.model_dump_json() + memory


async def test_metadata_url_that_resolves_to_a_secret_is_not_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAB_TOKEN", "canary/of-the-lab")
    async with serving({}) as server:
        gate(server, 'Bearer resource_metadata="/else/canary/./of-the-lab"')
        lab = {"name": "lab", "origin": server.url, "path": RPC, "bearer": {"env": "LAB_TOKEN"}}
        async with probing(ask={}, credentials=[lab]) as probes:
            observation = await probes.see(server.url)
        assert "authorization" in server.asked(RPC)
        assert not any("of-the-lab" in path for path in server.paths)
    assert (observation.login is not None, result(observation)) == (True, None)


async def test_metadata_is_compared_with_the_secret_that_its_origin_got(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAB_TOKEN", "canary-of-the-lab")
    async with serving({}, host="127.0.0.2") as other, serving({}) as server:
        gate(other)
        server.replies[CARD_PATH] = as_json(card(url=other.url + RPC))
        other.replies[AT_RPC] = as_json(metadata(other, scopes_supported=["canary-of-the-lab"]))
        lab = {"name": "lab", "origin": other.url, "bearer": {"env": "LAB_TOKEN"}}
        async with probing(ask={}, credentials=[lab | {"card_origins": [server.url]}]) as probes:
            login = (await probes.see(server.url)).login
            memory = probes.memory.to_json()
    assert login is not None
    assert login.metadata is not None
    assert "canary" not in login.model_dump_json() + memory


async def test_card_and_metadata_are_not_compared_with_the_secret_of_the_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server of the root could otherwise guess a secret that it never receives."""
    monkeypatch.setenv("LAB_TOKEN", "canary-of-the-lab")
    async with serving({}) as server:
        gate(server)
        schemes = {"a": {"type": "apiKey", "in": "header", "name": "canary-of-the-lab"}}
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC, securitySchemes=schemes))
        server.replies[AT_RPC] = as_json(metadata(server, scopes_supported=["canary-of-the-lab"]))
        lab = {"name": "lab", "origin": server.url, "path": RPC, "bearer": {"env": "LAB_TOKEN"}}
        async with probing(ask={}, credentials=[lab]) as probes:
            login = (await probes.see(server.url)).login
        assert "authorization" in server.asked(RPC)
    assert login is not None
    assert login.schemes == ("bearer",)
    assert login.card_schemes == ("apiKey header canary-of-the-lab",)
    assert login.metadata is not None
    assert login.metadata.scopes == ("canary-of-the-lab",)


async def test_metadata_of_an_interface_at_the_root_has_one_place() -> None:
    async with serving({}) as server:
        gate(server)
        server.replies["/"] = server.replies.pop(RPC)
        server.replies[CARD_PATH] = as_json(card(url=server.url + "/"))
        assert result(await probe_once(server)) == "missing"
        assert [path for path in server.paths if path.startswith(METADATA_PATH)] == [METADATA_PATH]


async def test_metadata_is_unknown_if_no_request_can_be_sent() -> None:
    def busy(_: Request) -> Fetched:
        raise AddressBusy("192.0.2.1")

    body = json.dumps(card(url="https://agent.example/rpc")).encode()
    witness = Played(
        card=always(ResultClass.OK, status=200, content_type="application/json", body=body),
        oauth=busy,
        rpc=always(ResultClass.GATED, status=401, challenges=("Bearer",)),
    )
    report = await Prober(witness, definition(ask={})).probe(entry("https://agent.example"), NOW_S)
    assert any(METADATA_PATH in path for path in witness.paths)
    assert report.observation.login is not None
    assert report.observation.login.metadata is None
    assert report.memory.oauth_metadata is None
