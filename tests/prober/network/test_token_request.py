"""Token endpoints that misbehave."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.prober.secrets.test_client_assertion import pem
from tests.support.certificates import Authority
from tests.support.hostile_server import (
    Reply,
    accepting,
    answer,
    as_json,
    endless_body,
    endless_headers,
    raw,
    redirect,
    reset,
    serving,
    silence,
)
from tests.support.listening_users import AS_ROOT, OTHER, received, silent_server
from tests.support.probing import PATIENT, SHORT_SECONDS, definition, fetching

from lifesign.domain.credentials.token import AccessToken, TokenFault
from lifesign.loopback.listeners import IN_THIS_PROCESS, ServerUsers
from lifesign.prober.definition.credentials import CredentialSettings
from lifesign.prober.network.token_request import MAX_ANSWER_BYTES, OAuthTokenClient
from lifesign.prober.secrets.credential_store import Credential
from lifesign.serving.ending_signals import EndRequests, end_at_next, restore_default

TOKEN_PATH = "/token"
SECRET = "client-canary-secret"
TOKEN = {"access_token": "access-canary-0001", "token_type": "Bearer"}


def credential(url: str, secret: str = SECRET, **members: Any) -> Credential:
    oauth2 = {"token_url": url, "client_id": "lifesign", "client_secret": {"env": "X"}} | members
    given = {"name": "acme", "origin": "https://acme.example", "oauth2": oauth2}
    return Credential(CredentialSettings.model_validate(given), secret)


async def requested(url: str, **settings: Any) -> AccessToken | TokenFault:
    async with fetching(definition(**settings)) as fetcher:
        return await OAuthTokenClient(fetcher, 60.0).request(credential(url), None)


async def fault(reply: Reply, **settings: Any) -> TokenFault:
    async with serving({TOKEN_PATH: reply}) as server:
        found = await requested(server.url + TOKEN_PATH, **settings)
    assert isinstance(found, TokenFault)
    assert SECRET not in str(found)
    return found


async def test_a_token_is_taken_from_the_answer() -> None:
    async with serving({TOKEN_PATH: as_json(TOKEN)}) as server:
        token = await requested(server.url + TOKEN_PATH)
    assert isinstance(token, AccessToken)
    assert token.value == TOKEN["access_token"]
    assert server.asked(TOKEN_PATH)["content-type"] == "application/x-www-form-urlencoded"
    assert server.asked(TOKEN_PATH)["authorization"].startswith("Basic ")


async def test_redirect_of_the_token_endpoint_is_not_followed() -> None:
    async with serving({TOKEN_PATH: as_json(TOKEN), "/other": as_json(TOKEN)}) as other:
        for status in (301, 302, 303, 307, 308):
            found = await fault(redirect(f"{other.url}{TOKEN_PATH}", status))
            assert (found.kind, found.reason.split(":")[0]) == ("no_answer", "redirect_refused")
            found = await fault(redirect("/other", status))
            assert found.kind == "no_answer"
    assert other.heads == []


@pytest.mark.parametrize("reply", [silence, endless_headers, endless_body, reset])
async def test_endless_or_malformed_token_answer_is_a_fault(reply: Reply) -> None:
    found = await fault(reply, timeouts=PATIENT | {"total_seconds": SHORT_SECONDS})
    assert found.kind == "no_answer"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (json.dumps(TOKEN | {"access_token": "x" * 2**20}).encode(), "no_answer"),
        (b" " * (MAX_ANSWER_BYTES + 1), "no_answer"),
        (json.dumps(TOKEN | {"access_token": "x" * 10_000}).encode(), "token_form"),
        (json.dumps(TOKEN | {"access_token": "two\nlines-of-token"}).encode(), "token_form"),
        (json.dumps(TOKEN | {"access_token": "tökens-in-latin"}).encode(), "token_form"),
        (json.dumps(TOKEN | {"access_token": SECRET}).encode(), "token_form"),
        (json.dumps(TOKEN | {"token_type": "DPoP"}).encode(), "token_type"),
        (json.dumps(TOKEN | {"expires_in": "soon"}).encode(), "lifetime"),
        (b"<!doctype html><title>Sign in</title>", "not_json"),
        (b"[" * 60_000, "not_json"),
        (b"", "not_json"),
        (b"\xff\xfe", "not_json"),
    ],
)
async def test_each_invalid_token_body_has_a_fault_code(body: bytes, kind: str) -> None:
    assert (await fault(answer(200, body, Content_Type="application/json"))).kind == kind
    assert (await fault(answer(200, body, Content_Type="text/html"))).kind == kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, "refused") for status in (400, 401, 403, 404)),
        *((status, "server_error") for status in (429, 500, 503)),
    ],
)
async def test_a_refusal_has_its_status_and_its_code(status: int, kind: str) -> None:
    body = json.dumps({"error": "invalid_client", "error_description": SECRET}).encode()
    found = await fault(answer(status, body, Content_Type="application/json", Retry_After="7"))
    assert (found.kind, found.reason, found.retry_after_s) == (kind, f"HTTP {status}, invalid_client", 7)


@pytest.mark.parametrize(
    "spoiled",
    [
        *({"expires_in": 0}, {"token_type": "DPoP"}, {"access_token": "short"}),
        # They are for the token endpoint, and not for the agent.
        *({"access_token": "refresh-canary-1"}, {"access_token": "refresh-canary-2"}),
    ],
)
async def test_refresh_token_is_stored_despite_an_unusable_access_token(
    spoiled: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "acme.refresh"
    file.touch(mode=0o600)
    file.write_text("refresh-canary-1")
    given = {"grant": "refresh_token", "token_file": str(file)}
    reply = as_json(TOKEN | {"refresh_token": "refresh-canary-2"} | spoiled)
    async with serving({TOKEN_PATH: reply}) as server, fetching(definition()) as fetcher:
        client = OAuthTokenClient(fetcher, 60.0)
        found = await client.request(credential(server.url + TOKEN_PATH, **given), None)
        await client.close()
    assert isinstance(found, TokenFault)
    assert file.read_text().strip() == "refresh-canary-2"


async def test_assertion_of_the_client_is_no_access_token() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        fields = parse_qs((await reader.readexactly(length)).decode())
        body = json.dumps(TOKEN | {"access_token": fields["client_assertion"][0]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    key = pem(ec.generate_private_key(ec.SECP256R1()))
    proof = {"auth_method": "private_key_jwt", "client_secret": None, "private_key": {"env": "X"}}
    async with accepting(echo) as port, fetching(definition()) as fetcher:
        acme = credential(f"http://127.0.0.1:{port}/token", key, **proof)
        found = await OAuthTokenClient(fetcher, 60.0).request(acme, None)
    assert isinstance(found, TokenFault)
    assert (found.kind, found.reason.split()[0]) == ("token_form", "access_token")


@AS_ROOT
async def test_secret_is_not_sent_to_the_server_of_another_user_than_before() -> None:
    with silent_server(OTHER) as server:
        port = server.getsockname()[1]
        IN_THIS_PROCESS.learn({port: ServerUsers(1000, None)})
        found = await requested(f"http://127.0.0.1:{port}{TOKEN_PATH}")
        assert await asyncio.to_thread(received, server) == [b""]
    assert isinstance(found, TokenFault)
    assert f"user {OTHER} listens" in found.reason


async def test_secret_is_not_sent_to_a_blocked_address() -> None:
    async with serving({TOKEN_PATH: as_json(TOKEN)}) as server:
        found = await requested(server.url + TOKEN_PATH, networks={"allow": ["10.0.0.0/8"]})
    assert isinstance(found, TokenFault)
    assert found.reason.startswith("blocked_address")
    assert server.heads == []


async def test_secret_is_sent_only_over_tls_or_to_a_private_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    authority.is_trusted(monkeypatch)
    async with fetching(definition()) as fetcher:
        monkeypatch.setattr(fetcher, "_is_private", lambda _address: False)
        endpoints = OAuthTokenClient(fetcher, 60.0)
        found = {}
        for scheme, tls in (("http", None), ("https", authority.serving("127.0.0.1"))):
            async with serving({TOKEN_PATH: as_json(TOKEN)}, tls) as server:
                found[scheme] = await endpoints.request(credential(server.url + TOKEN_PATH), None)
                assert len(server.heads) == (scheme == "https")
    assert isinstance(found["http"], TokenFault)
    assert found["http"].reason.startswith("blocked_address")
    assert isinstance(found["https"], AccessToken)


@pytest.mark.parametrize("method", ["client_secret_post", "private_key_jwt"])
async def test_token_fault_reason_does_not_quote_an_echoed_secret(method: str) -> None:
    proofs: list[str] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        fields = parse_qs((await reader.readexactly(length)).decode())
        proofs.append((fields.get("client_assertion") or fields["client_secret"])[0])
        writer.write(f"{proofs[0]} HTTP/1.1\r\n\r\n".encode())

    key = pem(ec.generate_private_key(ec.SECP256R1()))
    async with accepting(echo) as port, fetching(definition()) as fetcher:
        url = f"http://127.0.0.1:{port}/token"
        if method == "client_secret_post":
            acme = credential(url, auth_method=method)
        else:
            acme = credential(url, key, auth_method=method, client_secret=None, private_key={"env": "X"})
        found = await OAuthTokenClient(fetcher, 60.0).request(acme, None)
    assert isinstance(found, TokenFault)
    assert proofs
    assert proofs[0][:8] not in found.reason


_BODY = json.dumps(TOKEN).encode()
_OK_HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        _BODY,
        _OK_HEAD + _BODY + b"\r\n\r\n",
        _OK_HEAD + b"Content-Length: access-canary-0001\r\n\r\n",
        _OK_HEAD + b"Content-Length: 3\r\n\r\n" + _BODY,
        _OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + _BODY,
        _OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\n3a\r\n" + _BODY + b"xx" + _BODY,
        b"HTTP/1.1 307 Else\r\nLocation: https://x.test/?t=access-canary-0001\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_broken_answer_with_a_new_token_is_not_quoted(sent: bytes) -> None:
    """A token that a broken answer contains may be valid, and the fault of a credential is logged."""
    found = await fault(raw(sent))
    assert found.kind == "no_answer"
    assert "canary" not in str(found)


# ── refresh tokens ──


async def refreshed(reply: Reply, file: Path) -> tuple[AccessToken | TokenFault, bool]:
    """Return the result of a request with the refresh token in a file, and whether it was sent."""
    given = {"grant": "refresh_token", "token_file": str(file)}
    async with serving({TOKEN_PATH: reply}) as server, fetching(definition()) as fetcher:
        client = OAuthTokenClient(fetcher, 60.0)
        found = await client.request(credential(server.url + TOKEN_PATH, **given), None)
        await client.close()
        return found, bool(server.heads)


async def test_refresh_token_stays_in_use_until_another_one_comes(tmp_path: Path) -> None:
    file = tmp_path / "acme.refresh"
    file.touch(mode=0o600)
    file.write_text("refresh-canary-1")
    for reply in (as_json(TOKEN), answer(400)):
        _, is_sent = await refreshed(reply, file)
        assert is_sent
        assert file.read_text() == "refresh-canary-1"


@pytest.mark.parametrize("new", ["refresh canary 2", "short"])
async def test_new_refresh_token_is_stored_or_reported(
    tmp_path: Path, new: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "acme.refresh"
    file.touch(mode=0o600)
    file.write_text("refresh-canary-1")
    await refreshed(as_json(TOKEN | {"refresh_token": new}), file)
    is_stored = file.read_text().strip() == new
    assert is_stored is (new != "short")
    assert len(caplog.records) == (0 if is_stored else 1)
    assert new not in caplog.text


async def test_clients_share_a_refresh_token_file_and_a_link_to_it(tmp_path: Path) -> None:
    file, link = tmp_path / "acme.refresh", tmp_path / "link.refresh"
    file.touch(mode=0o600)
    file.write_text("refresh-canary-1")
    link.symlink_to(file)
    async with serving({TOKEN_PATH: as_json(TOKEN)}) as server, fetching(definition()) as fetcher:
        client = OAuthTokenClient(fetcher, 60.0)
        for path in (file, link):
            given = {"grant": "refresh_token", "token_file": str(path)}
            found = await client.request(credential(server.url + TOKEN_PATH, **given), None)
            assert isinstance(found, AccessToken)
        await client.close()


async def test_missing_refresh_token_is_a_fault_without_a_request(tmp_path: Path) -> None:
    found, is_sent = await refreshed(as_json(TOKEN), tmp_path / "absent.refresh")
    assert isinstance(found, TokenFault)
    assert not is_sent


@pytest.mark.parametrize(
    ("body", "token"),
    [(TOKEN | {"refresh_token": "refresh-canary-2"}, "refresh-canary-2"), (TOKEN, None)],
)
async def test_login_without_a_refresh_token_is_a_fault(body: dict[str, str], token: str | None) -> None:
    async with serving({TOKEN_PATH: as_json(body)}) as server, fetching(definition()) as fetcher:
        client = OAuthTokenClient(fetcher, 60.0)
        grant = {"grant_type": "authorization_code", "code": "canary"}
        found = await client.exchange_code(credential(server.url + TOKEN_PATH), grant)
    if token is None:
        assert isinstance(found, TokenFault)
        assert found.kind == "token_form"
    else:
        assert found == token


async def test_rotated_refresh_token_of_a_cancelled_request_is_stored_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raised: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    file = tmp_path / "acme.refresh"
    file.touch(mode=0o600)
    file.write_text("refresh-canary-1")
    arrived, may_answer = asyncio.Event(), asyncio.Event()

    async def late(writer: asyncio.StreamWriter, head: str) -> None:
        arrived.set()
        await may_answer.wait()
        await as_json(TOKEN | {"refresh_token": "refresh-canary-2"})(writer, head)

    given = {"grant": "refresh_token", "token_file": str(file)}
    async with serving({TOKEN_PATH: late}) as server, fetching(definition()) as fetcher:
        client = OAuthTokenClient(fetcher, 60.0)
        asking = asyncio.create_task(client.request(credential(server.url + TOKEN_PATH, **given), None))
        await arrived.wait()
        asking.cancel()
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        assert not closing.done()
        assert "waiting" in caplog.text
        end_at_next([signal.SIGTERM], EndRequests())
        os.kill(os.getpid(), signal.SIGTERM)
        restore_default([signal.SIGTERM])
        may_answer.set()
        await closing
    assert file.read_text().strip() == "refresh-canary-2"
    assert raised == []
