"""Which requests of a probe carry an access token, and what becomes of the probe without one."""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

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
    redirect,
    serving,
)
from tests.support.probing import Probes, fetched_as, layer, probing, results
from yarl import URL

from lifesign.domain.credentials.token import AccessToken, TokenFault, TokenFaultKind
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import ResultClass
from lifesign.prober.definition.credentials import CredentialSettings
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.network.request import Request
from lifesign.prober.probe.authenticated_request import (
    send_after_refusal,
    send_with_credential,
    with_credential_fault,
)
from lifesign.prober.secrets.credential_store import Credential
from lifesign.prober.secrets.token_source import TokenSource

RPC, TOKEN_PATH = "/rpc", "/token"
REJECTED, NO_TOKEN = "credentials_rejected", "token_error"


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_SECRET", "client-canary")


def settings(server: HostileServer, **members: Any) -> dict[str, Any]:
    oauth2 = {
        "token_url": server.url + TOKEN_PATH,
        "client_id": "lifesign",
        "client_secret": {"env": "CLIENT_SECRET"},
    }
    return {"credentials": [{"name": "acme", "origin": server.url, "oauth2": oauth2}], "ask": {}} | members


class Tokens:
    """A token endpoint that numbers its tokens, and an agent that admits some of them."""

    def __init__(self, admits: Callable[[int], bool]) -> None:
        self.issued = 0
        self._admits = admits

    async def issue(self, writer: Any, head: str) -> None:
        self.issued += 1
        token = {"access_token": f"access-token-no-{self.issued}", "token_type": "Bearer"}
        await as_json(token)(writer, head)

    def behind(self, reply: Reply, status: int = 401) -> Callable[[Any, str], Awaitable[None]]:
        return self.behind_sign_on(reply, answer(status))

    def behind_sign_on(self, reply: Reply, challenge: Reply) -> Callable[[Any, str], Awaitable[None]]:
        async def guarded(writer: Any, head: str) -> None:
            _, _, token = head.partition("Authorization: Bearer access-token-no-")
            is_admitted = bool(token) and self._admits(int(token.partition("\r")[0]))
            await (reply if is_admitted else challenge)(writer, head)

        return guarded


async def guarded(server: HostileServer, tokens: Tokens, status: int = 401) -> None:
    server.replies[TOKEN_PATH] = tokens.issue
    server.replies[RPC] = tokens.behind(answer(405), status)
    server.replies[CARD_PATH] = tokens.behind(as_json(card(url=server.url + RPC)))
    server.replies[HEALTH_PATH] = as_json(document())


def request_count(server: HostileServer, path: str) -> int:
    return server.paths.count(path)


async def transport(probes: Probes, url: str) -> str:
    return results(await probes.see(url))["transport"]


async def test_a_card_behind_a_login_is_read_with_a_token_after_a_refusal() -> None:
    tokens = Tokens(lambda _: True)
    async with serving({}) as server:
        await guarded(server, tokens)
        async with probing(**settings(server)) as probes:
            observation = await probes.see(server.url)
    assert results(observation) == {"discovery": "ok", "transport": "ok", "readiness": "ok"}
    assert layer(observation.transport).reason.endswith("with credential acme")
    assert (tokens.issued, request_count(server, CARD_PATH)) == (1, 2)
    assert "authorization" not in server.asked(HEALTH_PATH)


async def test_a_new_token_that_is_rejected_is_not_replaced() -> None:
    tokens = Tokens(lambda _: False)
    async with serving({}) as server:
        await guarded(server, tokens)
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        async with probing(**settings(server)) as probes:
            assert await transport(probes, server.url) == REJECTED
            assert (tokens.issued, request_count(server, RPC)) == (1, 1)


ONLY_NAMED = "the definition names"
SIGN_IN = "/sign-in"
PAGE = answer(200, b"<html>", Content_Type="text/html")


@pytest.mark.parametrize(
    ("challenge", "readiness"),
    [(redirect(SIGN_IN), "ok"), (PAGE, "ok"), (answer(404), "not_an_agent")],
    ids=["redirect", "page", "not found"],
)
async def test_documents_behind_single_sign_on_are_read_with_a_token(
    challenge: Reply, readiness: str
) -> None:
    tokens = Tokens(lambda _: True)
    async with serving({}) as server:
        server.replies |= {
            TOKEN_PATH: tokens.issue,
            SIGN_IN: PAGE,
            CARD_PATH: tokens.behind_sign_on(as_json(card(url=server.url + RPC)), challenge),
            RPC: tokens.behind_sign_on(answer(405), challenge),
            HEALTH_PATH: tokens.behind_sign_on(as_json(document()), challenge),
        }
        async with probing(**settings(server)) as probes:
            observation = await probes.see(server.url)
    assert results(observation) == {"discovery": "ok", "transport": "ok", "readiness": readiness}
    assert layer(observation.discovery).reason.endswith("with credential acme")
    # Most agents have no health document.
    assert request_count(server, HEALTH_PATH) == (2 if readiness == "ok" else 1)


async def test_card_is_looked_for_at_the_next_url_without_a_token() -> None:
    async with serving({TOKEN_PATH: answer(500), RPC: answer(405)}) as server:
        server.replies["/.well-known/agent.json"] = as_json(card(url=server.url + RPC))
        async with probing(**settings(server)) as probes:
            assert results(await probes.see(server.url))["discovery"] == "ok"
        del server.replies["/.well-known/agent.json"]
        async with probing(**settings(server)) as probes:
            assert results(await probes.see(server.url))["discovery"] == NO_TOKEN


@pytest.mark.parametrize("challenge", [redirect(SIGN_IN), PAGE, answer(500)])
async def test_documents_that_may_be_behind_a_withheld_credential_are_not_measured(challenge: Reply) -> None:
    async with serving({SIGN_IN: PAGE, CARD_PATH: challenge, "/.well-known/agent.json": challenge}) as server:
        given = settings(server)
        given["credentials"][0]["for_all_targets"] = False
        async with probing(**given) as probes:
            observation = await probes.see(server.url)
    assert layer(observation.discovery).result == "not_measured"
    assert layer(observation.discovery).reason.endswith(ONLY_NAMED)


async def test_wrong_token_at_a_single_sign_on_is_named() -> None:
    tokens = Tokens(lambda _: False)
    async with serving({TOKEN_PATH: tokens.issue}) as server, serving({SIGN_IN: PAGE}) as other:
        server.replies[CARD_PATH] = redirect(f"{other.url}{SIGN_IN}")
        server.replies["/.well-known/agent.json"] = as_json(card(url=server.url + RPC))
        async with probing(**settings(server)) as probes:
            assert results(await probes.see(server.url))["discovery"] == "ok"
        del server.replies["/.well-known/agent.json"]
        async with probing(**settings(server)) as probes:
            discovery = layer((await probes.see(server.url)).discovery)
    assert discovery.result == "redirect_refused"
    assert discovery.reason.endswith("with credential acme")


@pytest.mark.parametrize("status", [401, 404])
@pytest.mark.parametrize("subject_id", [None, "an-agent-at-its-url"])
async def test_target_that_the_definition_does_not_name_gets_no_credential(
    subject_id: str | None, status: int
) -> None:
    tokens = Tokens(lambda _: True)
    async with serving({}) as server:
        await guarded(server, tokens, status)
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        given = settings(server)
        given["credentials"][0]["for_all_targets"] = False
        named = server.url if subject_id else "https://agent.example"
        async with probing(**given, targets=[named]) as probes:
            observation = await probes.see(server.url, subject_id=subject_id)
        async with probing(**given, targets=[server.url]) as probes:
            assert await transport(probes, server.url) == "ok"
    found = layer(observation.transport)
    assert found.result == ("gated" if status == 401 else "not_measured")
    assert found.reason.endswith(ONLY_NAMED)


async def test_target_without_its_credential_cannot_test_guesses_of_the_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PASSWORD", "Summer2026!")
    async with serving({CARD_PATH: as_json({"query": "Summer2026!"})}) as server:
        login = {"username": "probe", "password": {"env": "PASSWORD"}}
        credential = {"name": "lab", "origin": server.url, "basic": login, "for_all_targets": False}
        found = []
        for named in ("https://agent.example", server.url):
            async with probing(credentials=[credential], targets=[named]) as probes:
                found.append(results(await probes.see(server.url))["discovery"])
    assert found == ["not_an_agent", "not_measured"]


@pytest.mark.parametrize(
    ("location", "sent"),
    [
        ("/a/other", "secret-of-a"),
        ("/a/special/rpc", None),
        ("/b", None),
        ("/a/../b", None),
        ("/bearer", None),
    ],
)
async def test_redirect_to_the_path_of_another_credential_carries_none(
    location: str, sent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {"a": "/a", "special": "/a/special", "origin": "/"}
    for name in paths:
        monkeypatch.setenv(f"SECRET_{name}", f"secret-of-{name}")
    tokens, heads = Tokens(lambda _: True), []

    async def note(writer: Any, head: str) -> None:
        heads.append(head)
        await answer(405)(writer, head)

    async with serving({TOKEN_PATH: tokens.issue}) as server:
        server.replies |= {
            CARD_PATH: as_json(card(url=f"{server.url}/a/rpc")),
            "/a/rpc": redirect(location),
            str(URL(server.url).join(URL(location)).path): note,
        }
        given = settings(server)
        given["credentials"][0]["path"] = "/bearer"
        given["credentials"] += [
            {"name": name, "origin": server.url, "path": path, "bearer": {"env": f"SECRET_{name}"}}
            for name, path in paths.items()
        ]
        async with probing(**given) as probes:
            assert await transport(probes, server.url) == "ok"
    assert [re.findall("Authorization: Bearer (.*)\r", head) for head in heads] == [[sent] if sent else []]
    assert tokens.issued == 0


@pytest.mark.parametrize(
    ("hidden", "result"),
    [(answer(404), "not_measured"), (answer(500), "not_measured"), (answer(401), "gated")],
)
async def test_redirect_to_where_the_credential_is_not_sent_is_no_failure(
    hidden: Reply, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "secret-of-a")
    async with serving({}) as server:
        server.replies |= {
            CARD_PATH: as_json(card(url=f"{server.url}/a/rpc")),
            "/a/rpc": redirect("/v2/rpc"),
            "/v2/rpc": hidden,
        }
        credential = {"name": "a", "origin": server.url, "path": "/a", "bearer": {"env": "SECRET"}}
        target = {"url": server.url, "assertions": [{"of": "transport", "status": 405}]}
        async with probing(credentials=[credential], ask={}, targets=[target]) as probes:
            observation = await probes.see(server.url)
    found = layer(observation.transport)
    assert found.result == result
    assert found.reason.endswith("is not sent")
    (assertion,) = observation.assertions or ()
    assert assertion.result == "not_measured"


@pytest.mark.parametrize(
    ("interface", "scope", "why"),
    [
        ("/b//rpc", {"path": "/b"}, "such a path"),
        ("/B/rpc", {"path": "/b"}, "such a path"),
        ("/b/rpc", {"path": "/b"}, "not for cards"),
    ],
)
async def test_agent_whose_credential_is_withheld_does_not_fail(
    interface: str, scope: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "secret-of-b")
    async with serving({}) as server:
        server.replies |= {
            f"/a{CARD_PATH}": as_json(card(url=server.url + interface)),
            interface: answer(404),
        }
        credential = {"name": "b", "origin": server.url, "bearer": {"env": "SECRET"}, **scope}
        async with probing(credentials=[credential], ask={}) as probes:
            found = layer((await probes.see(f"{server.url}/a")).transport)
    assert found.result is ResultClass.NOT_MEASURED
    assert why in found.reason


async def test_failure_that_a_removed_token_may_cause_is_not_measured() -> None:
    async with serving({}) as server:
        await guarded(server, Tokens(lambda _: True))
        word = "jsonrpc2-jsonrpc2"
        server.replies[TOKEN_PATH] = as_json({"access_token": word, "token_type": "Bearer"})
        server.replies[RPC] = answer(405)
        server.replies["/status"] = as_json({"state": word})
        assertions = [{"of": "/status", "pointer": "/state", "equals": value} for value in (word, "x")]
        target = {"url": server.url, "assertions": assertions}
        async with probing(**settings(server, targets=[target])) as probes:
            found = (await probes.see(server.url)).assertions or ()
    assert [each.result for each in found] == ["not_measured"] * 2


CARD_DIGEST = "digest of the card"


@pytest.mark.parametrize("word", ["interface-of-the-agent", "preferredTransport", CARD_DIGEST])
async def test_token_that_is_a_word_of_the_card_spoils_neither_memory_nor_requests(word: str) -> None:
    async with serving({"/interface-of-the-agent": answer(405)}) as server:
        await guarded(server, Tokens(lambda _: True))
        body = json.dumps(card(url=f"{server.url}/interface-of-the-agent")).encode()
        server.replies[CARD_PATH] = gated(answer(200, body, Content_Type="application/json"))
        token = sha256(body).hexdigest()[:16] if word is CARD_DIGEST else word
        server.replies[TOKEN_PATH] = as_json({"access_token": token, "token_type": "Bearer"})
        async with probing(**settings(server)) as probes:
            for day in (1, 2, 3):
                observation = await probes.see(server.url, at_s=day * 86_400.0)
                found = observation.discovery, observation.transport
                assert not any(each.has_failed for each in found if each is not None)
        assert [head for head in server.heads if "removed" in head.lower()] == []


@pytest.mark.parametrize(
    ("token", "reply"),
    [
        ("application/json", answer(200, b'{"jsonrpc": "2.0"}', Content_Type="application/json")),
        ("v2-endpoint-of-the-agent", answer(307, Location="/v2-endpoint-of-the-agent")),
    ],
)
async def test_header_that_contains_the_token_is_no_failure(token: str, reply: Reply) -> None:
    async with serving({}) as server:
        await guarded(server, Tokens(lambda _: True))
        server.replies[TOKEN_PATH] = as_json({"access_token": token, "token_type": "Bearer"})
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        server.replies[RPC] = reply
        message = {"message": {"text": "hi"}}
        async with probing(**settings(server, ask=message)) as probes:
            observation = await probes.see(server.url)
    assert layer(observation.message).result == "not_measured"


async def test_card_that_is_missing_is_a_failure_although_its_credential_would_be_withheld(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET", "secret-of-b")
    credential = {"path": "/b", "bearer": {"env": "SECRET"}}
    async with serving({}) as server:
        own = {"name": "b", "origin": server.url, **credential}
        async with probing(credentials=[own], ask={}) as probes:
            observation = await probes.see(f"{server.url}/B/x")
    assert results(observation)["discovery"] == "not_an_agent"
    assert observation.is_measured_failure


@pytest.mark.parametrize("target", ["/a", "/public", "/b/special"])
async def test_card_of_one_path_does_not_choose_requests_with_the_credential_of_another(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "special"):
        monkeypatch.setenv(f"SECRET_{name}", f"secret-of-{name}")
    heads = []

    async def note(writer: Any, head: str) -> None:
        heads.append(head)
        await answer(401)(writer, head)

    async with serving({}) as server:
        server.replies |= {
            target + CARD_PATH: as_json(card(url=f"{server.url}/b/admin")),
            "/b/admin": note,
        }
        paths = {"a": "/a", "b": "/b", "special": "/b/special"}
        credentials = [
            {"name": name, "origin": server.url, "path": path, "bearer": {"env": f"SECRET_{name}"}}
            for name, path in paths.items()
        ]
        async with probing(credentials=credentials, ask={}) as probes:
            observation = await probes.see(server.url + target)
    assert heads
    assert not any("secret-of" in head for head in heads)
    found = layer(observation.transport)
    assert found.result is ResultClass.GATED
    assert found.reason.endswith(f"cards of {server.url}{target}")


async def test_redirect_to_another_login_for_want_of_a_token_is_a_fault_of_the_token() -> None:
    async with serving({TOKEN_PATH: answer(503)}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        server.replies[RPC] = redirect("http://127.0.0.2:1/login")
        async with probing(**settings(server)) as probes:
            assert await transport(probes, server.url) == NO_TOKEN


async def test_a_fault_at_a_login_page_ends_when_the_interface_answers() -> None:
    tokens = Tokens(lambda _: True)
    async with serving({TOKEN_PATH: tokens.issue, "/login": answer(401)}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        server.replies[RPC] = redirect("/login")
        async with probing(**settings(server)) as probes:
            states = []
            for _ in range(2):
                await transport(probes, server.url)
                states += [each.state for each in probes.credentials.states]
                server.replies[RPC] = answer(405)
    assert states == ["credentials_rejected", "works"]


async def test_a_cached_token_that_is_rejected_is_replaced_once() -> None:
    tokens = Tokens(lambda number: number == tokens.issued >= least[0])
    least = [1]
    async with serving({}) as server:
        await guarded(server, tokens)
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        async with probing(**settings(server)) as probes:
            assert await transport(probes, server.url) == "ok"
            least[0] = 2
            assert await transport(probes, server.url) == "ok"
            assert (tokens.issued, request_count(server, RPC)) == (2, 3)
            least[0] = 3
            assert await transport(probes, server.url) == REJECTED
            assert (tokens.issued, request_count(server, RPC)) == (2, 4)


async def test_a_rejected_token_that_cannot_be_replaced_names_both_faults() -> None:
    tokens = Tokens(lambda _: is_admitted[0])
    is_admitted = [True]
    async with serving({}) as server:
        await guarded(server, tokens)
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        async with probing(**settings(server)) as probes:
            assert await transport(probes, server.url) == "ok"
            is_admitted[0] = False
            server.replies[TOKEN_PATH] = answer(500)
            for _ in range(2):
                rejected = layer((await probes.see(server.url)).transport)
                assert rejected.result == REJECTED
                assert {"401", "500"} <= set(re.findall(r"HTTP (\d+)", rejected.reason))
                (status,) = probes.credentials.states
                assert {"401", "500"} <= set(re.findall(r"HTTP (\d+)", status.detail or ""))


async def test_insufficient_scope_does_not_request_another_token() -> None:
    tokens = Tokens(lambda _: is_admitted[0])
    is_admitted = [True]
    async with serving({}) as server:
        await guarded(server, tokens, 403)
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        async with probing(**settings(server)) as probes:
            assert await transport(probes, server.url) == "ok"
            is_admitted[0] = False
            assert await transport(probes, server.url) == REJECTED
    assert tokens.issued == 1


@pytest.mark.parametrize("status", [401, 403])
async def test_missing_token_makes_a_refusal_a_credential_fault(status: int) -> None:
    async with serving({TOKEN_PATH: answer(503), RPC: answer(status)}) as server:
        server.replies[CARD_PATH] = answer(status)
        server.replies[HEALTH_PATH] = as_json(document())
        async with probing(**settings(server)) as probes:
            observation = await probes.see(server.url)
    assert results(observation)["discovery"] == NO_TOKEN
    assert "acme" in layer(observation.discovery).reason
    assert "503" in layer(observation.discovery).reason
    assert (request_count(server, TOKEN_PATH), request_count(server, CARD_PATH)) == (1, 1)


async def test_public_layers_are_measured_without_a_token() -> None:
    async with serving({TOKEN_PATH: answer(503), RPC: answer(405)}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        server.replies[HEALTH_PATH] = as_json(document())
        async with probing(**settings(server)) as probes:
            observation = await probes.see(server.url)
    assert results(observation) == {"discovery": "ok", "transport": "ok", "readiness": "ok"}
    assert "acme" in layer(observation.transport).reason
    assert "acme" not in layer(observation.discovery).reason


@pytest.mark.parametrize("status", [200, 302, 400, 404])
async def test_answer_without_a_token_fails_no_assertion(status: int) -> None:
    """A server may show those without a login a page, or nothing."""
    page = b"<html>Sign in</html>"
    async with serving({TOKEN_PATH: answer(503), RPC: answer(405)}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        server.replies[HEALTH_PATH] = as_json(document())
        server.replies["/login"] = answer(200, page, Content_Type="text/html")
        server.replies["/queue"] = answer(status, page, Content_Type="text/html", Location="/login")
        checks: list[dict[str, Any]] = [
            {"status": 200},
            {"pointer": "/depth", "equals": 1},
            {"text_contains": "depth"},
        ]
        target = {"url": server.url, "assertions": [{"of": "/queue"} | check for check in checks]}
        async with probing(**settings(server, targets=[target])) as probes:
            observation = await probes.see(server.url)
            [status_of_acme] = probes.credentials.states
    assert [each.result for each in observation.assertions or ()] == ["not_measured"] * 3
    assert status_of_acme.state == NO_TOKEN


@pytest.mark.parametrize("status", [404, 410, 418, 500])
async def test_hidden_interface_without_a_token_is_no_failure(status: int) -> None:
    async with serving({TOKEN_PATH: answer(503), RPC: answer(404)}) as server:
        server.replies[CARD_PATH] = answer(401)
        async with probing(**settings(server, ask={"health": False})) as probes:
            probes.memory = ProbeMemory(interface_url=server.url + RPC, card_read_at_s=time.time())
            server.replies[RPC] = answer(status)
            observation = await probes.see(server.url)
    assert not observation.is_measured_failure
    assert observation.result is ResultClass.GATED


async def test_token_is_sent_only_to_its_origin() -> None:
    tokens = Tokens(lambda _: True)
    async with serving({RPC: answer(401)}) as other, serving({}) as server:
        await guarded(server, tokens)
        server.replies[CARD_PATH] = as_json(card(url=other.url + RPC))
        async with probing(**settings(server)) as probes:
            assert await transport(probes, server.url) == "gated"
    assert tokens.issued == 0
    assert "authorization" not in other.asked(RPC)


async def test_unreachable_agent_is_a_failure_with_or_without_a_token() -> None:
    async with serving({TOKEN_PATH: answer(503), RPC: answer(502)}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        async with probing(**settings(server)) as probes:
            assert await transport(probes, server.url) == "http_error"


def test_payment_required_and_proxy_login_keep_their_class_with_a_token() -> None:
    request = Request(url=URL("https://acme.example/"), max_bytes=1, deadline_s=0)
    for status in (402, 407):
        fetched = fetched_as(request, ResultClass.GATED, status=status, token_fault="no token")
        assert with_credential_fault(fetched, ResultClass.GATED, "x") == (ResultClass.GATED, "x, no token")


NGINX_PAGE = b"<html><head><title>400 Request Header Or Cookie Too Large</title></head></html>"


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        (answer(414), REJECTED),
        (answer(431), REJECTED),
        (answer(400, NGINX_PAGE, Content_Type="text/html"), REJECTED),
        (answer(400, b"<html>", Content_Type="text/html"), "ok"),
    ],
)
async def test_credential_that_is_too_long_for_the_server_is_its_fault(reply: Reply, result: str) -> None:
    async with serving({}) as server:
        await guarded(server, Tokens(lambda _: True))
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        server.replies[RPC] = reply
        async with probing(**settings(server)) as probes:
            assert await transport(probes, server.url) == result


async def test_withheld_credential_does_not_come_back_at_a_later_redirect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET", "secret-of-a")
    heads = []

    async def note(writer: Any, head: str) -> None:
        heads.append(head)
        await answer(405)(writer, head)

    async with serving({}) as server:
        server.replies |= {
            CARD_PATH: as_json(card(url=f"{server.url}/a/rpc")),
            "/a/rpc": redirect("/b/x"),
            "/b/x": redirect("/a/admin"),
            "/a/admin": note,
        }
        credential = {"name": "a", "origin": server.url, "path": "/a", "bearer": {"env": "SECRET"}}
        async with probing(credentials=[credential], ask={}) as probes:
            await probes.see(server.url)
    assert heads
    assert not any("secret-of-a" in head for head in heads)


@pytest.mark.parametrize(
    ("scheme", "header", "path"),
    [
        ({"in": "header", "name": "Api-Key"}, ("api-key", "key-canary"), RPC),
        ({"in": "cookie", "name": "sid"}, ("cookie", "sid=key-canary"), RPC),
        ({"in": "query", "name": "key"}, None, f"{RPC}?key=key-canary"),
        ({"in": "header", "name": "Host"}, ("x-api-key", "key-canary"), RPC),
        (None, ("x-api-key", "key-canary"), RPC),
    ],
)
async def test_api_key_is_sent_where_the_card_declares(
    scheme: dict[str, str] | None,
    header: tuple[str, str] | None,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("API_KEY", "key-canary")
    schemes = {} if scheme is None else {"securitySchemes": {"k": {"type": "apiKey", **scheme}}}
    async with serving({}) as server:
        server.replies[path] = answer(405)
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC, **schemes))
        box = {"name": "box", "origin": server.url, "api_key": {"value": {"env": "API_KEY"}}}
        async with probing(credentials=[box], ask={}) as probes:
            observation = await probes.see(server.url)
        fields = server.asked(path)
        assert "canary" not in str(server.asked(CARD_PATH))
    assert results(observation)["transport"] == "ok"
    assert layer(observation.transport).reason.endswith("with credential box")
    assert "canary" not in observation.model_dump_json() + probes.memory.to_json()
    assert "canary" not in str({name: value for name, value in fields.items() if (name, value) != header})
    assert header is None or fields[header[0]] == header[1]


# ── without a network ──

ELSEWHERE = URL("https://acme.example/rpc")


def without_network(**members: Any) -> Credential:
    given = {"name": "acme", "origin": "https://acme.example"} | members
    return Credential(CredentialSettings.model_validate(given), "canary")


BEARER = {"bearer": {"env": "X"}}
CERTIFICATE = {"client_certificate": "/nowhere/client.pem", "client_key": {"file": "/nowhere/client.key"}}
OAUTH2 = {"oauth2": {"token_url": "https://login.example/", "client_id": "a", "client_secret": {"env": "X"}}}


@pytest.mark.parametrize(
    ("members", "result", "status", "is_repeated"),
    [
        (BEARER, ResultClass.GATED, 401, True),
        (BEARER, ResultClass.HTTP_ERROR, 400, True),
        (BEARER, ResultClass.TLS_FAILURE, None, False),
        (BEARER, ResultClass.HTTP_ERROR, 502, False),
        (BEARER, ResultClass.RATE_LIMITED, 429, False),
        (BEARER, ResultClass.OK, 200, False),
        (CERTIFICATE, ResultClass.GATED, 403, True),
        (CERTIFICATE, ResultClass.HTTP_ERROR, 400, True),
        (CERTIFICATE, ResultClass.NOT_AN_AGENT, 404, True),
        (CERTIFICATE, ResultClass.TLS_FAILURE, None, True),
        (CERTIFICATE, ResultClass.HTTP_ERROR, None, True),
        (CERTIFICATE, ResultClass.REFUSED, None, False),
    ],
)
async def test_refused_request_is_repeated_with_its_credential(
    members: dict[str, Any], result: ResultClass, status: int | None, *, is_repeated: bool
) -> None:
    refused = Fetched(url=ELSEWHERE, result=result, status=status, reason="")
    accepted = replace(refused, result=ResultClass.OK, status=200)

    async def send(*, credential: Credential | None = None) -> Fetched | None:
        assert credential is not None
        return accepted

    found = await send_after_refusal(refused, send, ELSEWHERE, without_network(**members), 1.0)
    assert (found is accepted) is is_repeated


async def test_request_does_not_wait_for_the_renewal_of_its_token() -> None:
    asked: list[str | None] = []

    async def renewed(rejected: str | None) -> AccessToken:
        asked.append(rejected)
        if len(asked) > 1:
            await asyncio.Event().wait()
        return AccessToken(value=f"access-canary-000{len(asked)}", renew_after_s=0.0, lifetime_s=60.0)

    sent: list[tuple[str, str] | None] = []

    async def send(*, credential: Credential | None = None) -> Fetched | None:
        assert credential is not None
        sent.append(credential.header())
        return Fetched(url=ELSEWHERE, result=ResultClass.OK, status=200, reason="")

    credential = without_network(**OAUTH2)
    credential.tokens = TokenSource("acme", renewed)
    for _ in range(2):
        assert await send_with_credential(send, credential, 60.0) is not None
    await asyncio.sleep(0)
    assert sent == [("Authorization", "Bearer access-canary-0001")] * 2
    assert asked == [None, None]
    await credential.tokens.close()


async def test_nothing_is_sent_without_time_and_token() -> None:
    async def no_token(*_: object) -> TokenFault:
        return TokenFault(kind=TokenFaultKind.NO_ANSWER, reason="canary")

    async def send(*, credential: Credential | None = None) -> Fetched | None:
        assert credential is None
        return None

    credential = without_network(**OAUTH2)
    credential.tokens = TokenSource("acme", no_token)
    assert await send_with_credential(send, credential, 1.0) is None
