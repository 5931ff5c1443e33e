"""Trials of credentials that need an access token."""

import pytest
from tests.prober.probe.test_authenticated_request import TOKEN_PATH, Tokens, settings
from tests.support.hostile_server import Reply, answer, serving
from tests.support.probing import probing
from yarl import URL

from lifesign.domain.credentials.acceptance import CredentialState
from lifesign.domain.credentials.advice import fault_advice
from lifesign.prober.probe.credential_trial import Trial, try_credential


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
