"""Requests of a probe with and without a credential."""

import base64
import json
import logging
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.support.agent_check import card, document
from tests.support.hostile_server import (
    CARD_PATH,
    HEALTH_PATH,
    HostileServer,
    Reply,
    answer,
    as_json,
    gated,
    kept,
    raw,
    redirect,
    serving,
)
from tests.support.probing import Bodies, definition, fetching, layer, probing, results
from yarl import URL

from lifesign.domain.credentials.acceptance import CredentialState
from lifesign.domain.credentials.disguise import MAX_ENTITIES
from lifesign.domain.credentials.missing_credentials import OtherCredential
from lifesign.domain.credentials.request_scope import CredentialScope
from lifesign.domain.credentials.secret import NO_SECRETS, REMOVED, Scrubber
from lifesign.domain.credentials.token import AccessToken, TokenFault, TokenFaultKind
from lifesign.domain.observation.results import Observation, ResultClass
from lifesign.prober.definition.credentials import CredentialSettings
from lifesign.prober.network.fetch import _Hop
from lifesign.prober.network.request import Request
from lifesign.prober.secrets.credential_store import (
    RELOAD_SECONDS,
    Credential,
    CredentialStore,
)
from lifesign.prober.secrets.secret_reader import Secrets, read_secrets

TOKEN = "canary-7d1f~secret+of/ours"
RPC = "/rpc"
REJECTED = "credentials_rejected"


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_TOKEN", TOKEN)


def settings(origin: str, **members: Any) -> dict[str, Any]:
    """Return a definition's members with one credential."""
    given = {"name": "lab", "origin": origin, "bearer": {"env": "LAB_TOKEN"}} | members
    if members.keys() & {"basic", "header"}:
        del given["bearer"]
    return {"credentials": [given]}


def behind_login(reply: Reply, *, token: str = TOKEN) -> Reply:
    """Answer 401 without the token."""

    async def answers(writer: Any, head: str) -> None:
        is_admitted = f"\r\nAuthorization: Bearer {token}\r\n" in head
        await (reply if is_admitted else answer(401))(writer, head)

    return answers


async def probed(server: HostileServer, evidence: Bodies | None = None, **given: Any) -> Observation:
    members = settings(server.url) | {"ask": {"message": {"text": "hello"}}} | given
    async with probing(evidence, **members) as probes:
        return await probes.see(server.url)


def carried(server: HostileServer) -> list[str]:
    """Return method and path of the requests that carried the token."""
    return [" ".join(head.split(" ", 2)[:2]) for head in server.heads if TOKEN in head]


# ── scope of a credential ──


async def test_an_agent_behind_a_login_is_measured() -> None:
    task = {"jsonrpc": "2.0", "id": 1, "result": {"kind": "task", "status": {"state": "completed"}}}
    async with serving({RPC: behind_login(as_json(task))}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        server.replies[HEALTH_PATH] = as_json(document())
        observation = await probed(server)
    assert results(observation) == dict.fromkeys(("discovery", "transport", "readiness", "message"), "ok")
    assert carried(server) == [f"GET {RPC}", f"POST {RPC}"]
    # Public documents were read as the public reads them.
    assert "lab" not in layer(observation.discovery).reason
    assert layer(observation.message).reason == "with credential lab"


async def test_a_card_behind_a_login_is_read_after_a_refusal() -> None:
    async with serving({RPC: behind_login(answer(405))}) as server:
        server.replies[CARD_PATH] = behind_login(as_json(card(url=server.url + RPC)))
        server.replies[HEALTH_PATH] = behind_login(as_json(document()))
        observation = await probed(server, ask={})
    assert results(observation) == {"discovery": "ok", "transport": "ok", "readiness": "ok"}
    assert layer(observation.discovery).reason.endswith("with credential lab")
    assert [head.split(" ", 2)[1] for head in server.heads] == [
        CARD_PATH, CARD_PATH, RPC, HEALTH_PATH, HEALTH_PATH,
    ]  # fmt: skip
    assert carried(server) == [f"GET {CARD_PATH}", f"GET {RPC}", f"GET {HEALTH_PATH}"]


async def test_robots_txt_and_other_origins_get_no_credential() -> None:
    async with serving({RPC: answer(401)}) as interface, serving({}) as server:
        server.replies[CARD_PATH] = as_json(card(url=interface.url + RPC))
        server.replies["/robots.txt"] = answer(403)
        observation = await probed(server, opt_out={"robots_txt": True})
    assert layer(observation.transport).result is ResultClass.GATED
    assert carried(server) == carried(interface) == []


@pytest.mark.parametrize("is_permitted", [False, True], ids=["stranger", "card_origins"])
async def test_card_of_another_origin_needs_a_permission(*, is_permitted: bool) -> None:
    scheme = {"type": "apiKey", "in": "query", "name": "stolen"}
    async with serving({RPC: answer(401), HEALTH_PATH: answer(401)}) as own, serving({}) as server:
        server.replies[CARD_PATH] = answer(
            200,
            json.dumps(card(url=own.url + RPC, securitySchemes={"k": scheme})).encode(),
            Content_Type="application/json",
            Link=f'<{own.url}{HEALTH_PATH}>; rel="status"',
        )
        api_key = {"value": {"env": "LAB_TOKEN"}}
        permission = {"card_origins": [server.url]} if is_permitted else {}
        credential = {"name": "lab", "origin": own.url, "api_key": api_key} | permission
        async with probing(credentials=[credential], ask={"message": {"text": "hello"}}) as probes:
            observation = await probes.see(server.url)
            state = probes.credentials.states[0].state
    assert carried(server) == []
    quoted = quote(TOKEN, safe="~")
    sent = [head.split(" ", 2)[1] for head in own.heads if quoted in head or TOKEN in head]
    if is_permitted:
        assert f"{RPC}?stolen={quoted}" in sent
    else:
        assert own.paths.count(RPC) == 2
        assert sent == []
        assert state != REJECTED
        transport = layer(observation.transport)
        assert transport.result is ResultClass.GATED
        assert transport.reason.endswith(f"credential lab is not for cards of {server.url}")


async def test_credential_is_sent_only_below_its_path() -> None:
    async with serving({"/in/rpc": behind_login(answer(405)), "/ping": answer(200)}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + "/in/rpc"))
        given = settings(server.url, path="/in") | {"ask": {"paths": ["/ping", "/in/ping"]}}
        await probed(server, **given)
    assert carried(server) == ["GET /in/rpc", "GET /in/ping"]


async def test_redirect_sends_no_credential_outside_its_scope() -> None:
    async with serving({"/there": answer(200)}) as other, serving({}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + "/in/rpc"))
        server.replies["/in/rpc"] = redirect(f"{other.url}/there", 307)
        observation = await probed(server, ask={})
        assert layer(observation.transport).result is ResultClass.REDIRECT_REFUSED
        server.replies["/in/rpc"] = redirect("/out", 307)
        server.replies["/out"] = answer(405)
        await probed(server, **(settings(server.url, path="/in") | {"ask": {}}))
    assert other.heads == []
    assert "GET /out" not in carried(server)
    assert "/out" in server.paths


@pytest.mark.parametrize("is_by_card", [False, True], ids=["redirect", "card"])
@pytest.mark.parametrize(
    "form",
    [
        "http://127.0.0.2:{port}/there",
        "//127.0.0.2:{port}/there",
        "http://{own}@127.0.0.2:{port}/there",
        "http://127.0.0.2:{port}\\@{own}/there",
        "http://{own}%2f@127.0.0.2:{port}/there",
        "http://{own}.@127.0.0.2:{port}/there",
        "http://localhost:{own_port}/there",
        "http://127.1:{own_port}/there",
        "http://[::ffff:127.0.0.1]:{own_port}/there",
    ],
)
async def test_a_host_that_looks_like_the_origin_gets_no_credential(form: str, *, is_by_card: bool) -> None:
    async with serving({"/there": answer(200)}, host="127.0.0.2") as other, serving({}) as server:
        own = server.url.removeprefix("http://")
        url = form.format(port=other.port, own=own, own_port=server.port)
        server.replies[CARD_PATH] = as_json(card(url=url if is_by_card else server.url + RPC))
        server.replies[RPC] = redirect(url, 307)
        await probed(server, ask={})
    assert carried(other) == []
    assert "GET /there" not in carried(server)
    assert carried(server) == ([] if is_by_card else [f"GET {RPC}"])


async def test_target_that_requires_another_scheme_rejects_the_credential() -> None:
    async with serving({RPC: answer(401, WWW_Authenticate='Basic realm="x"')}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        observation = await probed(server, ask={})
    assert layer(observation.transport).result == REJECTED
    assert observation.login is not None
    assert observation.login.schemes == ("basic",)
    # The token is not sent in the scheme that the target wants.
    assert {head.split("Authorization: ")[1].split(" ")[0] for head in server.heads if TOKEN in head} == {
        "Bearer"
    }
    assert base64.b64encode(TOKEN.encode()).decode() not in "".join(server.heads)


async def test_card_refused_after_a_redirect_gets_the_credential_at_its_own_origin_only() -> None:
    async with serving({"/card": answer(401)}) as other, serving({}) as server:
        server.replies[CARD_PATH] = redirect(f"{other.url}/card")
        observation = await probed(server, ask={})
    assert layer(observation.discovery).result is ResultClass.GATED
    assert (carried(server), carried(other)) == ([f"GET {CARD_PATH}"], [])


async def test_secret_is_sent_over_plain_http_only_to_allowed_private_networks() -> None:
    wanted = definition(**settings("http://127.0.0.1"), networks={"allow": ["8.8.8.0/24", "127.0.0.0/8"]})
    store = CredentialStore(wanted.credentials, read_secrets(wanted.credentials))
    async with fetching(wanted, store) as fetcher:
        credential = store.for_url("http://127.0.0.1/")
        request = Request(url=URL("http://127.0.0.1/"), max_bytes=1, deadline_s=0, credential=credential)
        hop = _Hop(request.url, request, 0, 0, NO_SECRETS, credential=request.credential)
        sent = {
            address: fetcher._credential_for(hop, ip_address(address)) is not None
            for address in ("127.0.0.1", "8.8.8.8", "10.0.0.1")
        }
    assert sent == {"127.0.0.1": True, "8.8.8.8": False, "10.0.0.1": False}


async def test_credential_of_a_path_uses_separate_connections() -> None:
    replies = {
        RPC: kept(status=405),
        CARD_PATH: kept(json.dumps(card()).encode(), Content_Type="application/json"),
    }
    async with serving(replies, keeps_alive=True) as server:
        server.replies[CARD_PATH] = kept(
            json.dumps(card(url=server.url + RPC)).encode(), Content_Type="application/json"
        )
        await probed(server, ask={"health": False}, **settings(server.url, path=RPC))
        assert server.connections == 2
        await probed(server, ask={"health": False})
        assert server.connections == 3
        await probed(server, ask={"health": False}, credentials=[])
        assert server.connections == 4


async def test_the_credential_of_an_origin_shares_connections_with_requests_without_it() -> None:
    replies = {RPC: kept(status=405), HEALTH_PATH: kept(json.dumps(document()).encode())}
    async with serving(replies, keeps_alive=True) as server:
        server.replies[CARD_PATH] = kept(
            json.dumps(card(url=server.url + RPC)).encode(), Content_Type="application/json"
        )
        await probed(server, ask={"message": None})
        assert carried(server) == [f"GET {RPC}"]
        assert server.connections == 1


# ── results of requests with a credential ──


@pytest.mark.parametrize("status", [401, 403])
async def test_a_rejected_credential_is_a_fault_of_the_configuration(status: int) -> None:
    async with serving({RPC: answer(status)}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        observation = await probed(server)
    assert results(observation)["transport"] == results(observation)["message"] == REJECTED
    assert observation.is_liveness_signal
    assert not observation.is_measured_failure
    assert observation.inconclusive_reason is None


async def test_all_rejected_counts_as_gated() -> None:
    async with serving({RPC: answer(401), CARD_PATH: answer(401), HEALTH_PATH: answer(401)}) as server:
        observation = await probed(server, ask={})
    assert set(results(observation).values()) == {REJECTED}
    assert not observation.is_measured_failure


@pytest.mark.parametrize("status", [402, 407])
async def test_payment_and_proxies_stay_gated(status: int) -> None:
    async with serving({RPC: answer(status)}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        assert results(await probed(server, ask={}))["transport"] == "gated"


@pytest.mark.parametrize(
    ("method", "header"),
    [
        ({"header": {"name": "X-API-Key", "value": {"env": "LAB_TOKEN"}}}, ("x-api-key", TOKEN)),
        (
            {"basic": {"username": "me", "password": {"env": "LAB_TOKEN"}}},
            ("authorization", "Basic " + base64.b64encode(f"me:{TOKEN}".encode()).decode()),
        ),
    ],
)
async def test_basic_and_header_are_sent(method: dict[str, Any], header: tuple[str, str]) -> None:
    async with serving({RPC: answer(405)}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        await probed(server, **(settings(server.url, **method) | {"ask": {}}))
        assert server.asked(RPC)[header[0]] == header[1]


# ── secrets that a target sends back ──

ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64_1": lambda text: base64.b64encode(b"x" + text.encode()).decode(),
    "base64_2": lambda text: base64.b64encode(b"xy" + text.encode()).decode(),
    "base64url": lambda text: base64.urlsafe_b64encode(b"?" + text.encode()).decode(),
    "hex": lambda text: text.encode().hex(),
    "url": lambda text: quote(text, safe=""),
    "json": lambda text: "".join(f"\\u{ord(character):04x}" for character in text),
}


def leaks(text: str) -> bool:
    """Return whether any encoding of the token is in a text."""
    forms = [encode(TOKEN) for encode in ENCODINGS.values()]
    # The ends of base64 belong to what stands around the secret.
    return any(form.strip("=")[4:-4] in text for form in forms)


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_secret_echoed_by_the_server_is_removed(encoding: str) -> None:
    echo = ENCODINGS[encoding](TOKEN)
    failed = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": "ECHO"}}
    failure = json.dumps(failed).replace("ECHO", echo)
    evidence = Bodies()
    async with serving({RPC: answer(200, failure.encode(), Content_Type="application/json")}) as server:
        body = json.dumps(card(name="ECHO", url=server.url + RPC)).replace("ECHO", echo).encode()
        own = answer(200, body, Content_Type="application/json", ETag=f'"{echo}"')
        server.replies[CARD_PATH] = gated(own)
        agent_id = json.loads(f'"{echo}"')
        server.replies[HEALTH_PATH] = gated(as_json(document(agent_id=agent_id)))
        async with probing(evidence, **settings(server.url), ask={"message": {"text": "hello"}}) as probes:
            report = await probes.report(server.url)
    assert results(report.observation)["message"] == "http_error"
    assert report.observation.reported_agent_id is not None
    shown = [report.observation.model_dump_json(), report.memory.to_json()]
    kept_bytes = [kept_body.decode() for kept_body in evidence.kept.values()]
    assert not any(map(leaks, [*shown, *kept_bytes]))
    assert len(kept_bytes) == 2
    assert REMOVED in report.observation.model_dump_json()


async def test_error_of_the_http_parser_contains_nothing_of_a_secret() -> None:
    digits = TOKEN.encode().hex()
    async with serving({RPC: raw(b"X" * 110 + digits.encode() + b"\r\n\r\n")}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        observation = await probed(server, ask={})
    assert digits[:16] not in observation.model_dump_json()


async def test_a_redirect_to_a_url_with_a_secret_is_refused() -> None:
    async with serving({RPC: redirect(f"/log?{quote(TOKEN, safe='')}", 307)}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        observation = await probed(server, ask={})
    assert layer(observation.transport).result is ResultClass.NOT_MEASURED
    assert not leaks(observation.model_dump_json())
    assert not any(path.startswith("/log") for path in server.paths)


def echoing_in_each_field(status: int) -> Reply:
    """Send the request's header back as header fields, and the token in those that are read."""

    async def reply(writer: Any, head: str) -> None:
        token = TOKEN if TOKEN in head else "nothing"
        values = {
            "Link": f'<https://x.example/{token}>; rel="status"',
            "ETag": f'"{token}"',
            "WWW-Authenticate": f'Bearer realm="{token}", error="{token}", {token} x="y"',
        }
        names = ("Content-Type", "Last-Modified", "Allow", "Mcp-Session-Id", "Age", "Date", "Retry-After")
        values |= dict.fromkeys(names, token)
        values |= {"Location": f"/{token}"} if status // 100 == 3 else {}
        fields = [f"HTTP/1.1 {status} {token}", *(f"{name}: {value}" for name, value in values.items())]
        fields += [f"X-Line-{number}: {line}" for number, line in enumerate(head.split("\r\n")) if line]
        writer.write("\r\n".join([*fields, "Content-Length: 2", "Connection: close", "", "{}"]).encode())

    return reply


@pytest.mark.parametrize("status", [200, 302, 307, 400, 401, 403, 404, 405, 429, 500])
async def test_echo_of_every_header_leaves_no_secret(status: int) -> None:
    evidence = Bodies()
    async with serving({RPC: echoing_in_each_field(status)}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        given = settings(server.url) | {"ask": {"health": False, "message": {"text": "hello"}}}
        async with probing(evidence, **given) as probes:
            reports = [await probes.report(server.url) for _ in range(2)]
    assert f"GET {RPC}" in carried(server)
    left = [text for each in reports for text in (each.observation.model_dump_json(), each.memory.to_json())]
    left += [body.decode() for body in evidence.kept.values()]
    for text in left:
        assert not leaks(text)
        assert TOKEN.lower() not in text.lower()


@pytest.mark.parametrize(("target", "is_compared"), [("/rpc/moved", True), ("/open", False)])
async def test_answer_after_a_redirect_is_compared_with_the_secret_if_its_request_carried_it(
    target: str, *, is_compared: bool
) -> None:
    """The agent at another path could otherwise guess a secret that it does not receive."""
    stream = answer(200, f"data: {TOKEN}\n\n".encode(), Content_Type="text/event-stream")
    pieces: list[str] = []

    def keep(piece: bytes, scrubber: Scrubber) -> bool:
        pieces.append(scrubber.clean_text(piece.decode()))
        return False

    async with serving({RPC: redirect(target, 307), target: stream}) as server:
        wanted = definition(**settings(server.url, path=RPC))
        store = CredentialStore(wanted.credentials, read_secrets(wanted.credentials))
        async with fetching(wanted, store) as fetcher:
            fetched = await fetcher.fetch(
                Request(
                    url=URL(server.url + RPC),
                    max_bytes=1_000,
                    deadline_s=float("inf"),
                    credential=store.named("lab"),
                    known_credentials=[store.named("lab")],
                    is_enough=keep,
                )
            )
    assert (f"GET {target}" in carried(server)) is is_compared
    for text in (fetched.body.decode(), "".join(pieces)):
        assert (TOKEN not in text) is is_compared


@pytest.mark.parametrize(("address", "is_compared"), [("127.0.0.1", True), ("8.8.8.8", False)])
async def test_answer_from_a_place_that_gets_no_secret_is_not_compared_with_it(
    address: str, *, is_compared: bool
) -> None:
    wanted = definition(**settings("http://lab.example"), networks={"allow": ["127.0.0.0/8"]})
    store = CredentialStore(wanted.credentials, read_secrets(wanted.credentials))
    async with fetching(wanted, store) as fetcher:
        url, own = URL("http://lab.example/"), store.named("lab")
        request = Request(url=url, max_bytes=1, deadline_s=0, known_credentials=[own])
        hop = _Hop(url, request, 0, 0, NO_SECRETS, own=own)
        assert bool(fetcher._scrubber_at(hop, ip_address(address))) is is_compared


async def test_interface_on_another_origin_sends_back_no_secret() -> None:
    evidence = Bodies()
    async with serving({}, host="127.0.0.2") as interface, serving({}) as server:
        server.replies[CARD_PATH] = as_json(card(url=interface.url + RPC))
        interface.replies[RPC] = as_json({"jsonrpc": "2.0", "id": 1, "error": {"message": TOKEN}})
        given = settings(interface.url, card_origins=[server.url])
        async with probing(evidence, **given, ask={"message": {"text": "hello"}}) as probes:
            await probes.see(server.url)
    assert len(evidence.kept) == 2
    assert not any(leaks(body.decode()) for body in evidence.kept.values())


async def test_public_answers_of_the_agent_that_gets_a_secret_do_not_show_it() -> None:
    async with serving({RPC: answer(405)}) as server:
        own = card(url=server.url + RPC, name=TOKEN)
        server.replies[CARD_PATH] = as_json(own, ETag=f'"{TOKEN}"')
        server.replies[HEALTH_PATH] = as_json(document(agent_id=TOKEN))
        async with probing(**settings(server.url), ask={}) as probes:
            report = await probes.report(server.url)
    assert carried(server) == [f"GET {RPC}"]
    assert report.observation.reported_agent_id == REMOVED
    assert not leaks(report.observation.model_dump_json() + report.memory.to_json())
    assert report.interface is None


async def test_answers_without_the_credential_are_not_compared_with_its_secret() -> None:
    """An agent could otherwise guess the secret of another one."""
    async with serving({RPC: answer(405)}, host="127.0.0.2") as other, serving({}) as server:
        # The interface is requested without the credential, as its `card_origins` do not have this card.
        own = card(url=other.url + RPC, name=TOKEN)
        server.replies[CARD_PATH] = as_json(own, ETag=f'"{TOKEN}"')
        server.replies[HEALTH_PATH] = as_json(document(agent_id=TOKEN))
        async with probing(**settings(other.url), ask={}) as probes:
            report = await probes.report(server.url)
    assert f"GET {RPC}" not in carried(other)
    assert report.observation.card_etag == f'"{TOKEN}"'
    assert report.observation.reported_agent_id == TOKEN
    assert report.interface is not None
    assert report.interface.form["name"] == TOKEN


@pytest.mark.parametrize("path", ["/", "/moved"])
async def test_answer_at_the_path_of_another_credential_is_not_compared_with_the_secret(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target of the whole origin leads there by its card, or by a redirect."""
    monkeypatch.setenv("OTHER_TOKEN", "token-of-the-other-path")
    body = f'"{TOKEN} token-of-the-other-path"'
    async with serving({"/other/rpc": as_json(body), "/moved": redirect("/other/rpc")}) as server:
        given = settings(server.url)
        other = {"name": "other", "path": "/other", "origin": server.url, "bearer": {"env": "OTHER_TOKEN"}}
        wanted = definition(credentials=[*given["credentials"], other])
        store = CredentialStore(wanted.credentials, read_secrets(wanted.credentials))
        url = URL(server.url + (path if path != "/" else "/other/rpc"))
        async with fetching(wanted, store) as fetcher:
            fetched = await fetcher.fetch(
                Request(
                    url=url,
                    max_bytes=1_000,
                    deadline_s=float("inf"),
                    credential=store.for_url(str(url)),
                    known_credentials=[store.named("lab")],
                )
            )
    assert TOKEN in fetched.body.decode()
    assert ("token-of-the-other-path" in fetched.body.decode()) == (path == "/moved")


async def test_answer_that_cannot_be_searched_for_secrets_is_not_measured() -> None:
    async with serving({}) as server:
        unsearched = "&#39;" * (MAX_ENTITIES + 1)
        server.replies[CARD_PATH] = gated(as_json(card(url=server.url + RPC, description=unsearched)))
        seen = await probed(server)
    assert layer(seen.discovery).result is ResultClass.NOT_MEASURED
    assert not seen.is_measured_failure


# ── the store ──


def store_of(file: Path, clock: Callable[[], float]) -> CredentialStore:
    each = CredentialSettings.model_validate(
        {"name": "lab", "origin": "https://lab.example", "bearer": {"file": str(file)}}
    )
    return CredentialStore([each], read_secrets([each]), clock)


def write_secret(file: Path, secret: str) -> None:
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    file.write_text(secret)


def bearer_of(store: CredentialStore) -> str:
    credential = store.for_url("https://lab.example/x")
    assert credential is not None
    header = credential.header()
    assert header is not None
    return header[1]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file, now = tmp_path / "lab.token", [0.0]
    write_secret(file, "first-secret")
    store = store_of(file, lambda: now[0])
    assert bearer_of(store) == "Bearer first-secret"
    write_secret(file, "second-secret")
    assert bearer_of(store) == "Bearer first-secret"
    now[0] += RELOAD_SECONDS
    assert bearer_of(store) == "Bearer second-secret"
    # A target may still send back the former one.
    scrubber = store.named("lab").scrubber
    assert scrubber.clean_text("first-secret second-secret") == "REMOVED-SECR REMOVED-SECRE"


async def test_changed_client_secret_causes_a_request_for_a_token_at_once(tmp_path: Path) -> None:
    file, now, requested = tmp_path / "acme.secret", [0.0], []
    write_secret(file, "wrong-secret")
    client = {"token_url": "https://login.example/token", "client_id": "x", "client_secret": {"file": file}}
    each = CredentialSettings.model_validate(
        {"name": "acme", "origin": "https://lab.example", "oauth2": client}
    )

    async def request_token(credential: Credential, _rejected: str | None) -> TokenFault:
        requested.append(credential.secret)
        return TokenFault(kind=TokenFaultKind.REFUSED, reason="HTTP 401", retry_after_s=900.0)

    store = CredentialStore([each], read_secrets([each]), lambda: now[0], request_token=request_token)
    for secret in ("wrong-secret", "right-secret"):
        write_secret(file, secret)
        now[0] += RELOAD_SECONDS
        for _ in range(2):
            credential = store.for_url("https://lab.example/x")
            assert credential is not None
            assert credential.tokens is not None
            await credential.tokens.prepare(1.0)
    assert requested == ["wrong-secret", "right-secret"]


def test_answer_of_another_url_after_a_change_does_not_end_a_rejection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, now = tmp_path / "lab.token", [0.0]
    write_secret(file, "first-secret")
    store = store_of(file, lambda: now[0])
    card, status = URL("https://lab.example/card"), URL("https://lab.example/status")
    store.note_use(status, CredentialState.CREDENTIALS_REJECTED, "lab")
    write_secret(file, "second-secret")
    now[0] += RELOAD_SECONDS
    assert bearer_of(store) == "Bearer second-secret"
    caplog.clear()
    # A card that is missing says nothing about the login of another path.
    store.note_use(card, CredentialState.WORKS)
    store.note_use(status, CredentialState.CREDENTIALS_REJECTED, "lab")
    assert caplog.records == []
    store.note_use(status, CredentialState.WORKS)
    assert len(caplog.records) == 1


def test_rejection_at_a_url_ends_whatever_its_query_and_for_each_target_apart(tmp_path: Path) -> None:
    write_secret(tmp_path / "lab.token", "first-secret")
    store = store_of(tmp_path / "lab.token", lambda: 0.0)
    messages = URL("https://lab.example/messages")
    for target in ("one", "two"):
        rejected = CredentialState.CREDENTIALS_REJECTED
        store.note_use(messages.with_query(session="1"), rejected, "lab", target=target)
    for target, state in (
        ("one", CredentialState.CREDENTIALS_REJECTED),
        ("two", CredentialState.WORKS),
    ):
        store.note_use(messages.with_query(session="2"), CredentialState.WORKS, "lab", target=target)
        assert [each.state for each in store.states] == [state]


def test_former_secret_that_is_part_of_the_new_one_hides_nothing(tmp_path: Path) -> None:
    file, now = tmp_path / "lab.token", [0.0]
    write_secret(file, "Sommer/2026")
    store = store_of(file, lambda: now[0])
    write_secret(file, "Sommer/2026!Zusatz")
    now[0] += RELOAD_SECONDS
    scrubber = store.named("lab").scrubber
    assert scrubber.clean_text("<Sommer\\/2026!Zusatz>") == f"<{REMOVED}>"


@pytest.mark.parametrize(("value", "removed"), [("Token canary-of-lab", True), ("Token canary", False)])
def test_token_of_a_header_is_removed_without_its_scheme(value: str, *, removed: bool) -> None:
    header = {"name": "Authorization", "value": {"env": "X"}}
    each = CredentialSettings.model_validate(
        {"name": "lab", "origin": "https://lab.example", "header": header}
    )
    store = CredentialStore([each], Secrets({each.source: value}))
    scrubber = store.named("lab").scrubber
    assert "canary" not in scrubber.clean_text(f"<{value}>")
    # Too short to be removed alone.
    assert ("canary" in scrubber.clean_text(f"<{value.split()[1]}>")) is not removed


def test_file_that_changed_before_the_start_of_a_process_is_read_again(tmp_path: Path) -> None:
    """A process that replaces a dead one gets the secrets that were read at the start of the crawl."""
    file = tmp_path / "lab.token"
    write_secret(file, "first-secret")
    each = CredentialSettings.model_validate(
        {"name": "lab", "origin": "https://lab.example", "bearer": {"file": str(file)}}
    )
    secrets = read_secrets([each]).for_worker([each])
    write_secret(file, "second-secret")
    assert bearer_of(CredentialStore([each], secrets)) == "Bearer second-secret"


def store_with_refresh_token(file: Path, clock: Callable[[], float]) -> CredentialStore:
    """That of a public client, which requests no token."""
    public = {"auth_method": "none", "grant": "refresh_token", "token_file": str(file)}
    oauth2 = {"token_url": "https://login.example/token", "client_id": "lifesign"} | public
    given = CredentialSettings.model_validate(
        {"name": "lab", "origin": "https://lab.example", "oauth2": oauth2}
    )

    async def request(_credential: Credential, _rejected: str | None) -> AccessToken:
        raise AssertionError

    return CredentialStore([given], read_secrets([given]), clock, request_token=request)


def test_refresh_token_that_is_replaced_ends_no_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The prober itself replaces it, with each access token of a public client."""
    file, now = tmp_path / "lab.refresh", [0.0]
    write_secret(file, "refresh-canary-1")
    store = store_with_refresh_token(file, lambda: now[0])
    store.note_use(URL("https://lab.example/x"), CredentialState.CREDENTIALS_REJECTED, "lab")
    caplog.clear()
    write_secret(file, "refresh-canary-2-and-more")
    now[0] += RELOAD_SECONDS
    assert store.for_url("https://lab.example/x") is not None
    assert [each.state for each in store.states] == [CredentialState.CREDENTIALS_REJECTED]
    assert caplog.records == []


def test_last_secret_stays_in_use_if_its_file_becomes_unreadable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, now = tmp_path / "lab.token", [0.0]
    write_secret(file, "first-secret")
    store = store_of(file, lambda: now[0])
    for spoil in (lambda: file.write_text("bad\nsecret-of-two-lines"), file.unlink):
        spoil()
        now[0] += RELOAD_SECONDS
        assert bearer_of(store) == "Bearer first-secret"
    assert len(caplog.records) == 2
    assert "secret-of-two-lines" not in caplog.text
    # Once for each change.
    now[0] += RELOAD_SECONDS
    bearer_of(store)
    assert len(caplog.records) == 2


def test_a_secret_is_read_as_soon_as_the_mode_of_its_file_is_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file, now = tmp_path / "lab.token", [0.0]
    write_secret(file, "first-secret")
    store = store_of(file, lambda: now[0])
    file.chmod(0o644)
    file.write_text("second-secret")
    now[0] += RELOAD_SECONDS
    assert bearer_of(store) == "Bearer first-secret"
    file.chmod(0o600)
    now[0] += RELOAD_SECONDS
    assert bearer_of(store) == "Bearer second-secret"
    store.note_use(URL("https://lab.example/x"), CredentialState.WORKS)
    # The mode alone is logged too. The known state of an unchanged secret stays.
    for mode in (0o644, 0o600):
        file.chmod(mode)
        now[0] += RELOAD_SECONDS
        assert bearer_of(store) == "Bearer second-secret"
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 4
    assert [each.state for each in store.states] == [CredentialState.WORKS]


def test_a_rejected_credential_is_logged_once_not_for_each_target(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    given = {"name": "lab", "origin": "https://lab.example", "bearer": {"env": "LAB_TOKEN"}}
    each = CredentialSettings.model_validate(given)
    store = CredentialStore([each], Secrets({each.source: TOKEN}))
    urls = [f"https://lab.example/{number}" for number in range(3)]
    for url in urls * 2:
        store.note_use(URL(url), CredentialState.CREDENTIALS_REJECTED, "lab")
    # It works once every place that refused it has accepted it.
    for url in urls:
        store.note_use(URL(url), CredentialState.WORKS)
    store.note_use(URL(urls[0]), CredentialState.TOKEN_ERROR, "lab")
    store.note_use(URL(urls[0]), CredentialState.CREDENTIALS_REJECTED, "lab")
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.WARNING] * 3
    assert all("credential lab" in record.getMessage() for record in caplog.records)
    assert TOKEN not in caplog.text


def test_representation_of_a_credential_hides_its_secret() -> None:
    each = CredentialSettings.model_validate(
        {"name": "lab", "origin": "https://lab.example", "bearer": {"env": "LAB_TOKEN"}}
    )
    assert repr(Credential(each, TOKEN)) == "<Credential lab>"
    store = CredentialStore([each], Secrets({each.source: TOKEN}))
    assert TOKEN not in repr(store) + repr(vars(store)["_credentials"])
    assert store.for_url("https://other.example/") is None
    assert not CredentialStore()


@pytest.mark.parametrize(
    ("status_code", "expected"),
    [(405, "works"), (401, REJECTED), (403, REJECTED), (500, None), (407, None), (302, None)],
)
async def test_answers_determine_the_state_of_a_credential(status_code: int, expected: str | None) -> None:
    async with serving({RPC: answer(status_code)}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        async with probing(**settings(server.url), ask={"health": False}) as probes:
            await probes.see(server.url)
            [status] = probes.credentials.states
    assert (status.scope.name, status.state) == ("lab", expected)
    assert status.detail == (f"HTTP {status_code}" if expected == REJECTED else None)


async def test_a_store_without_the_private_key_uses_and_removes_tokens_of_another_process(
    tmp_path: Path,
) -> None:
    file = tmp_path / "client.key"
    signed = {"auth_method": "private_key_jwt", "private_key": {"file": str(file)}}
    oauth2 = {"token_url": "https://login.example/", "client_id": "a"} | signed
    each = CredentialSettings.model_validate(
        {"name": "lab", "origin": "https://lab.example", "oauth2": oauth2}
    )
    now = [0.0]

    async def request(_credential: Credential, _rejected: str | None) -> AccessToken:
        return AccessToken(value="token-from-elsewhere", renew_after_s=50.0, lifetime_s=60.0)

    secrets = Secrets({each.source: "private-key"}).for_worker([each])
    assert secrets.values == {}
    with pytest.raises(KeyError):
        CredentialStore([each], secrets, request_token=request)
    store = CredentialStore([each], secrets, lambda: now[0], request_token=request, owns_tokens=False)
    credential = store.named("lab")
    assert credential.tokens is not None
    assert await credential.tokens.prepare(10.0)
    write_secret(file, "another-key")
    now[0] += RELOAD_SECONDS
    assert bearer_of(store) == "Bearer token-from-elsewhere"
    assert [*credential.secrets()] == ["token-from-elsewhere"]
    assert REMOVED in store.named("lab").scrubber.clean_text("token-from-elsewhere")
    await store.close()


# ── without a network ──


def other_prober_has(origin: str) -> OtherCredential:
    return OtherCredential(holder="key:other/w", scope=CredentialScope(name="lab", origin=origin, path="/"))


def test_credential_that_another_prober_has_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    store = CredentialStore()
    first, second = map(other_prober_has, ("https://a.example", "https://b.example"))
    for missing, count in (([first], 1), ([first], 1), ([first, second], 2), ([second], 2), ([], 2)):
        store.note_others(missing)
        assert len(caplog.records) == count
        is_missing = store.missing_for("https://a.example/rpc", "https://a.example/") is not None
        assert is_missing is (first in missing)


def test_credential_that_worked_elsewhere_is_not_called_missing(caplog: pytest.LogCaptureFixture) -> None:
    store, url, target = CredentialStore(), "https://a.example/rpc", "https://a.example/"
    store.note_others([], [other_prober_has("https://a.example")])
    assert store.missing_for(url, target) is None
    assert store.working_elsewhere(url, target) is not None
    assert caplog.records == []


def oauth_settings() -> CredentialSettings:
    oauth2 = {"token_url": "https://login.example/", "client_id": "a", "client_secret": {"env": "X"}}
    return CredentialSettings.model_validate(
        {"name": "lab", "origin": "https://lab.example", "oauth2": oauth2}
    )


def test_oauth_client_needs_a_way_to_obtain_tokens() -> None:
    each = oauth_settings()
    with pytest.raises(ValueError, match="lab"):
        CredentialStore([each], Secrets({each.source: TOKEN}))


def test_certificate_is_sent_in_no_header() -> None:
    given = {
        "name": "lab",
        "origin": "https://lab.example",
        "client_certificate": "/nowhere/client.pem",
        "client_key": {"file": "/nowhere/client.key"},
    }
    assert Credential(CredentialSettings.model_validate(given), TOKEN).header() is None
