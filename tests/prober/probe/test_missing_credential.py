"""Targets behind a login whose credential another prober has."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.prober.secrets.test_credential_store import RPC, TOKEN, behind_login, settings
from tests.support.agent_check import card, document
from tests.support.hostile_server import CARD_PATH, HEALTH_PATH, HostileServer, answer, as_json, serving
from tests.support.probing import Probes, layer, probing, results

from lifesign.domain.credentials.acceptance import CredentialState
from lifesign.domain.credentials.missing_credentials import OtherCredential
from lifesign.domain.credentials.request_scope import CredentialScope
from lifesign.domain.observation.results import InconclusiveReason, Observation, ResultClass

HOLDER = "key:other/w"


def others(origin: str, path: str = "/") -> list[OtherCredential]:
    scope = CredentialScope(name="acme", origin=origin, path=path)
    return [OtherCredential(holder=HOLDER, scope=scope)]


@asynccontextmanager
async def without_credential(path: str = "/", **given: Any) -> AsyncIterator[tuple[HostileServer, Probes]]:
    """Probe an agent whose interface is behind a login, as a prober that lacks the credential."""
    async with serving({RPC: behind_login(answer(405))}) as server, probing(**given) as probes:
        server.replies[CARD_PATH] = behind_login(as_json(card(url=server.url + RPC)))
        server.replies[HEALTH_PATH] = behind_login(as_json(document()))
        probes.credentials.note_others(others(server.url, path))
        yield server, probes


def assert_not_measured(observation: Observation) -> None:
    assert observation.result is ResultClass.NOT_MEASURED
    assert observation.inconclusive_reason is InconclusiveReason.NO_CREDENTIAL
    assert not observation.is_liveness_signal
    assert not observation.is_measured_failure


async def test_target_that_needs_a_credential_of_another_prober_is_not_measured() -> None:
    async with without_credential() as (server, probes):
        seen = await probes.see(server.url)
        assert set(results(seen).values()) == {"not_measured"}
        assert_not_measured(seen)
        for name in (HOLDER, "acme"):
            assert name in layer(seen.discovery).reason
        probes.credentials.note_others([])
        assert (await probes.see(server.url)).result is ResultClass.GATED


@pytest.mark.parametrize(("token", "expected"), [("of-the-other-prober", "not_measured"), (TOKEN, "ok")])
async def test_only_a_refusal_is_not_measured_where_a_credential_of_another_prober_worked_later(
    monkeypatch: pytest.MonkeyPatch, token: str, expected: str
) -> None:
    monkeypatch.setenv("LAB_TOKEN", TOKEN)
    async with serving({RPC: behind_login(answer(405), token=token)}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        check = {"of": "card", "pointer": "/name", "equals": "another"}
        target = {"url": server.url, "assertions": [check]}
        async with probing(**settings(server.url), targets=[target]) as probes:
            probes.credentials.note_others([], others(server.url))
            seen = await probes.see(server.url)
            (state,) = probes.credentials.states
    is_refused = expected == "not_measured"
    assert results(seen)["transport"] == expected
    # The public card has arrived without a credential.
    assert [each.result == "assertion_failed" for each in seen.assertions or ()] == [not is_refused]
    assert (state.state is CredentialState.CREDENTIALS_REJECTED) is is_refused


async def test_gated_target_outside_the_missing_scope_stays_gated() -> None:
    async with without_credential("/elsewhere") as (server, probes):
        assert (await probes.see(server.url)).result is ResultClass.GATED


async def test_target_of_an_origin_that_only_another_prober_permits_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LAB_TOKEN", TOKEN)
    async with serving({RPC: behind_login(answer(405))}) as server, serving({}) as cards:
        cards.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        async with probing(**settings(server.url)) as probes:
            assert results(await probes.see(cards.url))["transport"] == "gated"
            (missing,) = others(server.url)
            for origins in ((server.url,), (cards.url,), (cards.url,)):
                probes.credentials.note_others([replace(missing, target_origins=origins)])
            assert [cards.url in line for line in caplog.messages if HOLDER in line] == [False, True]
            assert results(await probes.see(cards.url))["transport"] == "not_measured"


async def test_failures_next_to_a_missing_login_do_not_count() -> None:
    async with without_credential() as (server, probes):
        server.replies[CARD_PATH] = answer(500)
        seen = await probes.see(server.url)
        assert set(results(seen).values()) == {"not_measured"}
        assert_not_measured(seen)


async def test_public_card_is_measured_despite_a_missing_credential() -> None:
    async with without_credential() as (server, probes):
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        seen = await probes.see(server.url)
        assert results(seen) == {"discovery": "ok", "transport": "not_measured", "readiness": "not_measured"}
        assert seen.result is ResultClass.OK
        assert seen.inconclusive_reason is None


async def test_additional_paths_are_not_measured_without_the_credential() -> None:
    async with without_credential(ask={"paths": ["/ping", "/open"]}) as (server, probes):
        server.replies["/ping"], server.replies["/open"] = answer(403), answer(200)
        seen = await probes.see(server.url)
        assert {path: each.result.value for path, each in (seen.paths or {}).items()} == {
            "/ping": "not_measured", "/open": "ok",
        }  # fmt: skip


async def test_credential_for_a_shorter_path_is_not_used_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_TOKEN", TOKEN)
    async with serving({RPC: behind_login(answer(405), token="of-the-longer-path")}) as server:
        server.replies[CARD_PATH] = answer(404)
        async with probing(**settings(server.url), ask={"health": False}) as probes:
            server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
            assert results(await probes.see(server.url))["transport"] == "credentials_rejected"
            probes.credentials.note_others(others(server.url, RPC))
            assert results(await probes.see(server.url))["transport"] == "not_measured"


async def test_answer_to_a_request_with_the_credential_is_checked_despite_its_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While one target rejects a credential, the registry names that of another prober for its place."""
    monkeypatch.setenv("LAB_TOKEN", TOKEN)
    async with serving(
        {RPC: behind_login(answer(405)), "/ready": behind_login(answer(200, b"no"))}
    ) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        target = {"url": server.url, "assertions": [{"of": "/ready", "text_contains": "yes"}]}
        async with probing(**settings(server.url), targets=[target]) as probes:
            probes.credentials.note_others(others(server.url))
            seen = await probes.see(server.url)
    assert [each.result.value for each in seen.assertions or ()] == ["assertion_failed"]


async def test_answer_is_checked_if_the_credential_of_a_shorter_path_is_accepted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LAB_TOKEN", TOKEN)
    async with serving({RPC: behind_login(answer(405)), "/ready": answer(404, b"no")}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        check = {"of": "/ready", "text_contains": "yes"}
        target = {"url": server.url, "assertions": [check]}
        async with probing(**settings(server.url), targets=[target]) as probes:
            probes.credentials.note_others(others(server.url, "/ready"))
            # The server may hide the resource from those without the other credential.
            (hidden,) = (await probes.see(server.url)).assertions or ()
            server.replies["/ready"] = behind_login(answer(200, b"no"))
            (accepted,) = (await probes.see(server.url)).assertions or ()
    assert (hidden.result, accepted.result) == ("not_measured", "assertion_failed")
    assert sum("lacks" in line for line in caplog.messages) == 0


async def test_assertion_without_the_credential_names_the_prober_that_has_it() -> None:
    target = {"assertions": [{"of": "/open", "text_contains": "yes"}]}
    async with serving({"/open": answer(200, b"no")}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        async with probing(targets=[target | {"url": server.url}]) as probes:
            probes.credentials.note_others(others(server.url))
            (seen,) = (await probes.see(server.url)).assertions or ()
    assert seen.result == "not_measured"
    assert HOLDER in (seen.reason or "")
