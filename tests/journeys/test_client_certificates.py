"""Agents that admit only clients with a certificate: real TLS servers, and the prober's own classes."""

import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.agent_check import card, document
from tests.support.alerting_server import alerting
from tests.support.both_loops import on_both_loops
from tests.support.certificates import LONG_AGO, Authority
from tests.support.hostile_server import CARD_PATH, HEALTH_PATH, HostileServer, answer, as_json, kept, serving
from tests.support.probing import definition, fetching, layer, probing, results
from yarl import URL

from lifesign.cli.commands.credentials import _try
from lifesign.crawl.oauth_login import token_tls
from lifesign.domain.observation.results import ResultClass
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.network.request import Request
from lifesign.prober.secrets.client_tls import ClientCertificate
from lifesign.prober.secrets.credential_store import CredentialStore
from lifesign.prober.secrets.secret_reader import read_secrets

RPC = "/rpc"
TLS_12, TLS_13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def bank(authority: Authority, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return a credential for an origin; `issuer` issues its certificate."""

    def make(
        origin: str, name: str = "bank", *, issuer: Authority = authority, **more: Any
    ) -> dict[str, Any]:
        certificate, key = issuer.client(tmp_path, name)
        return {
            "name": name,
            "origin": origin,
            "client_certificate": str(certificate),
            "client_key": {"file": str(key)},
            "ca_file": str(authority.file),
        } | more

    return make


def agent_of(server: HostileServer) -> None:
    server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
    server.replies[HEALTH_PATH] = as_json(document())
    server.replies[RPC] = answer(405)


async def fetched(url: str, credentials: list[dict[str, Any]], *, with_credential: bool = True) -> Fetched:
    """Request a URL once."""
    wanted = definition(credentials=credentials)
    store = CredentialStore(wanted.credentials, read_secrets(wanted.credentials))
    async with fetching(wanted, store) as fetcher:
        return await fetcher.fetch(
            Request(
                url=URL(url),
                max_bytes=1000,
                deadline_s=float("inf"),
                credential=store.for_url(url) if with_credential else None,
            )
        )


@pytest.mark.parametrize("version", [TLS_12, TLS_13])
async def test_an_agent_behind_mutual_tls_is_measured(
    authority: Authority, bank: Callable[..., dict[str, Any]], version: ssl.TLSVersion
) -> None:
    async with serving({}, authority.demanding("127.0.0.1", version=version)) as server:
        agent_of(server)
        async with probing(credentials=[bank(server.url)], opt_out={"robots_txt": True}) as probes:
            observation = await probes.see(server.url)
    assert results(observation) == {"discovery": "ok", "transport": "ok", "readiness": "ok"}
    assert layer(observation.discovery).reason.endswith("with credential bank")
    assert observation.certificate_expires_at is not None


async def test_private_certificate_authority_is_trusted_without_a_client_certificate(
    authority: Authority, bank: Callable[..., dict[str, Any]]
) -> None:
    async with serving({}, authority.serving("127.0.0.1")) as server:
        agent_of(server)
        async with probing(credentials=[bank(server.url)]) as probes:
            observation = await probes.see(server.url)
        assert results(observation) == {"discovery": "ok", "transport": "ok", "readiness": "ok"}
        # The public document was read as the public reads it.
        assert "bank" not in layer(observation.discovery).reason
        foreign = bank("https://127.0.0.9")
        assert (await fetched(server.url, [foreign])).result is ResultClass.TLS_FAILURE


@on_both_loops
@pytest.mark.parametrize("version", [TLS_12, TLS_13])
async def test_a_refused_certificate_is_a_fault_of_the_credential(
    authority: Authority, bank: Callable[..., dict[str, Any]], tmp_path: Path, version: ssl.TLSVersion
) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    with alerting(authority.demanding("127.0.0.1", version=version)) as server:
        refused = await fetched(server.url, [bank(server.url, issuer=other)])
        admitted = await fetched(server.url, [bank(server.url)])
    assert (refused.result, refused.status, refused.credential) == (ResultClass.GATED, None, "bank")
    assert refused.is_certificate_refused
    assert refused.is_reached
    assert (admitted.status, admitted.credential) == (405, "bank")
    assert server.clients == ["bank.example"]


async def test_a_refused_certificate_rejects_the_credential(
    authority: Authority, bank: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    with alerting(authority.demanding("127.0.0.1", version=TLS_12)) as server:
        async with probing(credentials=[bank(server.url, issuer=other)]) as probes:
            observation = await probes.see(server.url)
    assert results(observation)["discovery"] == "credentials_rejected"
    assert layer(observation.discovery).status_code is None
    assert observation.result is ResultClass.GATED


@on_both_loops
@pytest.mark.parametrize("version", [TLS_12, TLS_13])
async def test_certificate_that_expires_is_a_fault_of_the_credential(
    authority: Authority, bank: Callable[..., dict[str, Any]], tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """Servers of asyncio, such as uvicorn, refuse it without an alert."""
    async with serving({}, authority.demanding("127.0.0.1", version=version)) as server:
        wanted = definition(credentials=[bank(server.url)])
        secrets = read_secrets(wanted.credentials)
        authority.client(tmp_path, "bank", begins_at=LONG_AGO, ends_at=LONG_AGO + timedelta(days=1))
        chain, key = [(tmp_path / f"bank.{end}").read_text() for end in ("pem", "key")]
        expired = ClientCertificate(chain=chain, key=key, expires_at=LONG_AGO)
        tls = {"bank": replace(secrets.tls["bank"], certificate=expired)}
        store = CredentialStore(wanted.credentials, replace(secrets, tls=tls))
        async with fetching(wanted, store) as fetcher:
            request = Request(url=URL(server.url), max_bytes=0, deadline_s=float("inf"))
            found = await fetcher.fetch(replace(request, credential=store.for_url(server.url)))
            without = await fetcher.fetch(request)
    assert (found.result, found.status, found.credential) == (ResultClass.GATED, None, "bank")
    assert found.is_certificate_refused
    assert "expired 2020-01-01" in found.reason
    assert not without.is_certificate_refused


@on_both_loops
async def test_a_server_that_demands_a_certificate_is_gated_without_one(
    authority: Authority, bank: Callable[..., dict[str, Any]]
) -> None:
    with alerting(authority.demanding("127.0.0.1", version=TLS_13)) as server:
        found = await fetched(server.url, [bank(server.url)], with_credential=False)
    assert (found.result, found.credential, found.is_certificate_refused) == (ResultClass.GATED, None, True)


async def test_connections_and_sessions_are_not_shared(
    authority: Authority, bank: Callable[..., dict[str, Any]]
) -> None:
    context = authority.serving("127.0.0.1")
    context.load_verify_locations(authority.file)
    context.verify_mode = ssl.CERT_OPTIONAL
    with alerting(context) as server:
        wanted = definition(
            credentials=[
                bank(server.url, "one", path="/one"),
                bank(server.url, "two", path="/two"),
            ]
        )
        store = CredentialStore(wanted.credentials, read_secrets(wanted.credentials))
        async with fetching(wanted, store) as fetcher:
            for path in ("/one", "/two", "/", "/one"):
                url = server.url + path
                await fetcher.fetch(
                    Request(url=URL(url), max_bytes=0, deadline_s=float("inf"), credential=store.for_url(url))
                )
    assert server.clients == ["one.example", "two.example", "", "one.example"]
    assert server.resumed == [False] * 4


async def test_idle_connection_is_reused_only_for_its_credential(
    authority: Authority, bank: Callable[..., dict[str, Any]]
) -> None:
    async with serving(
        dict.fromkeys(("/one", "/two", "/"), kept()), authority.serving("127.0.0.1"), keeps_alive=True
    ) as server:
        wanted = definition(
            credentials=[
                bank(server.url, "one", path="/one"),
                bank(server.url, "two", path="/two"),
            ]
        )
        store = CredentialStore(wanted.credentials, read_secrets(wanted.credentials))
        async with fetching(wanted, store) as fetcher:
            one = store.for_url(f"{server.url}/one")
            # The credential of /one is not sent for the other two paths.
            for path in ("/one", "/one", "/", "/two"):
                found = await fetcher.fetch(
                    Request(
                        url=URL(server.url + path), max_bytes=100, deadline_s=float("inf"), credential=one
                    )
                )
                assert found.credential == ("one" if path == "/one" else None)
        assert server.connections == 2


async def test_client_certificate_and_token_can_be_combined(
    authority: Authority, bank: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANK_TOKEN", "canary-1f2e3d4c")
    with alerting(authority.demanding("127.0.0.1")) as server:
        await fetched(server.url, [bank(server.url, bearer={"env": "BANK_TOKEN"})])
    assert server.clients == ["bank.example"]
    assert "\r\nAuthorization: Bearer canary-1f2e3d4c\r\n" in server.heads[0]


@pytest.mark.parametrize("has_two", [False, True], ids=["same_origin", "another_credential"])
async def test_ca_file_of_its_origin_applies_to_a_token_endpoint(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, *, has_two: bool
) -> None:
    monkeypatch.setenv("BANK_SECRET", "client-canary")
    token = as_json({"access_token": "access-canary-0001", "token_type": "Bearer"})
    async with serving({"/token": token}, authority.serving("127.0.0.1")) as server:
        agent_of(server)
        oauth2 = {"token_url": f"{server.url}/token", "client_id": "a"}
        client = oauth2 | {"client_secret": {"env": "BANK_SECRET"}}
        trusting = {"origin": server.url, "ca_file": str(authority.file)}
        credentials: list[dict[str, Any]] = [{"name": "bank", "oauth2": client} | trusting]
        if has_two:
            # The provider is at the origin of the second credential, and so are its authorities.
            credentials = [
                {"name": "bank", "origin": "https://bank.example", "oauth2": client},
                {"name": "provider", "bearer": {"env": "BANK_SECRET"}} | trusting,
            ]
        async with probing(credentials=credentials) as probes:
            tokens = probes.credentials.named("bank").tokens
            assert tokens is not None
            assert await tokens.prepare(10.0), tokens.fault
            chosen = definition(credentials=credentials).credentials
            login = token_tls(chosen[0].oauth2, chosen, pytest.fail) if chosen[0].oauth2 else None
            trial = await _try(definition(credentials=credentials), chosen[0], URL(chosen[0].origin))
    assert login is not None
    assert {step.name: step.result for step in trial.steps}["token"] == "ok"
    assert login.authorities == authority.file.read_text()
