"""Trials of credentials: steps, verdict and hint."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.prober.probe.test_authenticated_request import TOKEN_PATH, Tokens, settings
from tests.support.hostile_server import Reply, answer, redirect, serving
from tests.support.probing import probing
from yarl import URL

from lifesign.domain.credentials.acceptance import CredentialState
from lifesign.domain.credentials.advice import fault_advice
from lifesign.domain.credentials.request_scope import CredentialScope
from lifesign.domain.observation.results import ResultClass
from lifesign.prober.definition.credentials import CredentialSettings
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.network.request import Request
from lifesign.prober.probe.credential_trial import Trial, try_credential
from lifesign.prober.secrets.client_tls import ClientTls
from lifesign.prober.secrets.credential_store import CredentialStore
from lifesign.prober.secrets.secret_reader import Secrets


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_SECRET", "canary-of-the-client")


async def tried(endpoint: Reply | None = None, *, admits: bool = True) -> Trial:
    tokens = Tokens(lambda _: admits)
    async with serving({}) as server:
        server.replies |= {TOKEN_PATH: endpoint or tokens.issue, "/": tokens.behind(answer(200))}
        async with probing(**settings(server)) as probes:
            return await try_credential(probes.witness, probes.credentials, URL(server.url), 5.0)


def steps(trial: Trial) -> dict[str, str]:
    return {step.name: step.result.value for step in trial.steps}


async def test_credential_trial_lists_the_token_as_a_step() -> None:
    trial = await tried()
    assert trial.verdict == "works"
    assert list(steps(trial)) == ["place", "token", "address", "tls", "request_without", "request_with"]
    assert set(steps(trial).values()) == {"ok"}


async def test_credential_trial_ends_without_a_token() -> None:
    trial = await tried(answer(401))
    assert trial.verdict == "fault"
    assert steps(trial) == {"place": "ok", "token": "fault"}
    assert "canary" not in trial.steps[-1].text
    assert trial.hint is not None


@pytest.mark.parametrize("reply", [answer(500), answer(400), answer(200)])
async def test_each_fault_of_the_token_endpoint_has_its_advice(reply: Reply) -> None:
    trial = await tried(reply)
    assert trial.hint == fault_advice(CredentialState.TOKEN_ERROR, trial.steps[-1].text)


async def test_credential_trial_reports_a_rejected_token() -> None:
    trial = await tried(admits=False)
    assert trial.verdict == "fault"
    assert steps(trial)["request_with"] == "fault"


# ── without a network ──

URL_TLS, URL_PLAIN = URL("https://acme.example/a2a"), URL("http://10.1.2.3/a2a")


class Answering:
    """Answers the request without the credential, and the one with it."""

    def __init__(self, without: dict[str, Any], with_it: dict[str, Any]) -> None:
        self._answers = {False: without, True: with_it}

    async def fetch(self, request: Request) -> Fetched:
        return Fetched(url=request.url, **self._answers[request.credential is not None])


BEARER = {"bearer": {"env": "X"}}


async def tried_without_network(
    with_it: dict[str, Any],
    without: dict[str, Any] | None = None,
    url: URL = URL_TLS,
    method: dict[str, Any] = BEARER,
) -> Trial:
    settings = CredentialSettings.model_validate({"name": "acme", "origin": str(url.origin()), **method})
    store = CredentialStore(
        [settings], Secrets({settings.source: "canary"}, {"acme": ClientTls()}), lambda: 0.0
    )
    refused = {"result": ResultClass.GATED, "status": 401}
    return await try_credential(Answering(without or refused, with_it), store, url, 5.0)


def answered(status: int, result: ResultClass = ResultClass.OK, **members: Any) -> dict[str, Any]:
    return {"status": status, "result": result, "credential": "acme", **members}


@pytest.mark.parametrize(
    ("result", "last", "verdict", "hint"),
    [
        (ResultClass.BLOCKED_ADDRESS, ("address", "fault"), "fault", "networks.allow"),
        (ResultClass.NOT_MEASURED, ("address", "fault"), "fault", "networks.allow"),
        (ResultClass.TLS_FAILURE, ("tls", "fault"), "fault", "ca_file"),
        (ResultClass.TIMEOUT, ("address", "unknown"), "unknown", "network of"),
    ],
)
async def test_credential_trial_ends_at_a_connection_that_fails(
    result: ResultClass, last: tuple[str, str], verdict: str, hint: str
) -> None:
    trial = await tried_without_network({"result": result})
    assert list(steps(trial).items()) == [("place", "ok"), last]
    assert trial.verdict == verdict
    assert hint in (trial.hint or "")


@pytest.mark.parametrize(
    ("api_key", "verdict", "sent_in"),
    [
        ({}, "unknown", "header X-API-Key"),
        ({"name": "X-Box-Token"}, "fault", "header X-Box-Token"),
        ({"place": "query", "name": "key"}, "fault", "parameter key"),
    ],
)
async def test_rejected_api_key_is_no_fault_if_only_the_card_knows_its_place(
    api_key: dict[str, str], verdict: str, sent_in: str
) -> None:
    method = {"api_key": {"value": {"env": "X"}, **api_key}}
    trial = await tried_without_network(answered(401, ResultClass.GATED), method=method)
    assert (trial.verdict, trial.steps[-1].result) == (verdict, verdict)
    assert trial.steps[-1].text.endswith(sent_in)
    assert ("agent card" in (trial.hint or "")) is (verdict == "unknown")


@pytest.mark.parametrize("has_certificate", [False, True])
async def test_broken_connection_is_not_a_fault_of_the_address(*, has_certificate: bool) -> None:
    pair = {"client_certificate": "bank.pem", "client_key": {"env": "X"}} if has_certificate else {}
    broken = {"result": ResultClass.HTTP_ERROR, "reason": "the connection broke"}
    trial = await tried_without_network(broken, broken, method=BEARER | pair)
    assert steps(trial) == {
        "place": "ok", "address": "ok", "request_without": "ok", "request_with": "unknown",
    }  # fmt: skip
    assert trial.verdict == "unknown"
    assert ("client certificate" in (trial.hint or "")) is has_certificate


async def test_credential_trial_shows_when_the_certificate_ends() -> None:
    ends_at = datetime(2027, 1, 2, tzinfo=UTC)
    trial = await tried_without_network(answered(200, certificate_expires_at=ends_at))
    (tls,) = (step for step in trial.steps if step.name == "tls")
    assert (tls.result, "2027-01-02" in tls.text) == ("ok", True)
    assert (trial.verdict, trial.hint) == ("works", None)


async def test_credential_that_was_not_sent_is_a_fault_of_the_connection() -> None:
    trial = await tried_without_network({"result": ResultClass.OK, "status": 200}, url=URL_PLAIN)
    assert list(steps(trial).items())[-1] == ("request_with", "fault")
    assert (trial.verdict, "https" in (trial.hint or "")) == ("fault", True)


SIGN_IN = answered(302, ResultClass.REDIRECT_REFUSED)
PAGE = answered(200, content_type="text/html")


@pytest.mark.parametrize(
    ("with_it", "without", "verdict"),
    [
        (answered(200), answered(200), "not_needed"),
        (answered(405, ResultClass.HTTP_ERROR), SIGN_IN, "works"),
        (answered(200), PAGE, "works"),
        (PAGE, PAGE, "unknown"),
        (SIGN_IN, SIGN_IN, "unknown"),
        (SIGN_IN, None, "unknown"),
        (answered(404, ResultClass.NOT_AN_AGENT), answered(404, ResultClass.NOT_AN_AGENT), "unknown"),
        (answered(500, ResultClass.HTTP_ERROR), None, "unknown"),
        (answered(200), {"result": ResultClass.TIMEOUT}, "works"),
        (answered(405, ResultClass.HTTP_ERROR), None, "works"),
        (answered(403, ResultClass.GATED), None, "fault"),
    ],
)
async def test_verdict_of_a_trial_follows_from_both_answers(
    with_it: dict[str, Any], without: dict[str, Any] | None, verdict: str
) -> None:
    trial = await tried_without_network(with_it, without)
    assert trial.verdict == verdict
    assert (trial.hint is None) is (verdict == "works")
    assert ("sign in" in (trial.hint or "")) is (with_it in (PAGE, SIGN_IN))
    assert ("127.0.0.1" in (trial.hint or "")) is (with_it == SIGN_IN)


@pytest.mark.parametrize(
    ("reason", "text"),
    [("", "HTTP 200"), ("HTTP 200 (HTML)", "HTTP 200 (HTML)"), ("a web page", "HTTP 200 (a web page)")],
)
async def test_credential_trial_shows_each_status_once(reason: str, text: str) -> None:
    trial = await tried_without_network(answered(200, reason=reason))
    assert trial.steps[-1].text == text


@pytest.mark.parametrize(
    ("reason", "text"),
    [("", "no HTTP answer"), ("EOF", "answer: EOF")],
)
async def test_credential_trial_shows_a_missing_answer(reason: str, text: str) -> None:
    gated = {"result": ResultClass.GATED, "reason": reason}
    trial = await tried_without_network(answered(200), gated)
    (without,) = (step for step in trial.steps if step.name == "request_without")
    assert without.text.endswith(text)


async def test_credential_is_not_tried_where_the_prober_sends_another_one() -> None:
    async with serving({}) as server, probing(**settings(server)) as probes:
        names = {"acme": "/", "special": "/special"}
        scopes = [CredentialScope(name=name, origin=server.url, path=path) for name, path in names.items()]
        url = URL(f"{server.url}/special/rpc")
        trial = await try_credential(probes.witness, probes.credentials, url, 5.0, scopes)
        assert not server.heads
    assert (trial.verdict, steps(trial)) == ("fault", {"place": "fault"})
    assert "special" in str(trial.hint)


@pytest.mark.parametrize("location", ["/special/rpc", "/SPECIAL/rpc"])
async def test_credential_trial_follows_no_redirect_to_the_path_of_another_credential(location: str) -> None:
    tokens = Tokens(lambda _: True)
    async with serving({TOKEN_PATH: tokens.issue, "/rpc": redirect(location)}) as server:
        names = {"acme": "/", "special": "/special"}
        scopes = [CredentialScope(name=name, origin=server.url, path=path) for name, path in names.items()]
        async with probing(**settings(server)) as probes:
            url = URL(f"{server.url}/rpc")
            trial = await try_credential(probes.witness, probes.credentials, url, 5.0, scopes)
        assert [head for head in server.heads if "access-" in head and location in head] == []
    assert trial.verdict == "unknown"
    assert trial.steps[-1].text.endswith("not sent)")


@pytest.mark.parametrize("path", ["//special/rpc", "/SPECIAL/rpc", "/x/..%2fspecial/rpc"])
async def test_credential_is_not_tried_where_the_prober_withholds_it(path: str) -> None:
    async with serving({}) as server, probing(**settings(server)) as probes:
        names = {"acme": "/", "special": "/special"}
        scopes = [CredentialScope(name=name, origin=server.url, path=path) for name, path in names.items()]
        url = URL(f"{server.url}{path}", encoded=True)
        trial = await try_credential(probes.witness, probes.credentials, url, 5.0, scopes)
        assert not server.heads
    assert (trial.verdict, steps(trial)) == ("fault", {"place": "fault"})


async def test_credential_is_not_tried_at_another_place() -> None:
    store = CredentialStore([], Secrets(), lambda: 0.0)
    trial = await try_credential(Answering({}, {}), store, URL_TLS, 5.0)
    assert (trial.verdict, steps(trial)) == ("fault", {"place": "fault"})
    assert "--url" in (trial.hint or "")
    assert "127.0.0.1" in (trial.hint or "")


async def test_trial_shows_no_secret_that_the_server_received_before() -> None:
    """A server can repeat it in the answer to the request without it."""
    leaking = redirect("https://agent.example/canary-of-the-client")
    async with serving({"/": leaking}) as server:
        credential = {"name": "acme", "origin": server.url, "bearer": {"env": "CLIENT_SECRET"}}
        async with probing(**settings(server, credentials=[credential])) as probes:
            trial = await try_credential(probes.witness, probes.credentials, URL(server.url), 5.0)
    assert {"request_without", "request_with"} <= steps(trial).keys()
    assert "canary" not in str(trial)
