import pytest

from lifesign.domain.credentials.acceptance import CredentialState
from lifesign.domain.credentials.advice import LOOK_AT_SECRET, TOO_FEW_RIGHTS, fault_advice
from lifesign.domain.credentials.token import TokenFault, TokenFaultKind, read_token
from lifesign.domain.observation.results import ResultClass

NO_TOKEN = CredentialState.TOKEN_ERROR


def test_each_kind_of_token_fault_has_its_own_advice() -> None:
    found = {fault_advice(NO_TOKEN, str(TokenFault(kind=kind, reason="HTTP 500"))) for kind in TokenFaultKind}
    assert len(found) == len(TokenFaultKind)


@pytest.mark.parametrize(("status", "kind"), [(500, "server_error"), (503, "server_error"), (400, "refused")])
def test_an_error_of_the_provider_is_not_one_of_the_client(status: int, kind: str) -> None:
    fault = read_token(status, None)
    assert isinstance(fault, TokenFault)
    assert fault.kind == kind
    assert ("at fault" in fault_advice(NO_TOKEN, str(fault))) is (kind == "server_error")


def test_blocked_token_endpoint_needs_an_allowed_network() -> None:
    fault = TokenFault(
        kind=TokenFaultKind.NO_ANSWER, reason=f"{ResultClass.BLOCKED_ADDRESS}: 127.0.0.1 is loopback"
    )
    assert "networks.allow" in fault_advice(NO_TOKEN, str(fault))


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("HTTP 400, invalid_grant", "credentials login"),
        ("HTTP 404", "token_url"),
        ("HTTP 405", "token_url"),
        ("HTTP 401, invalid_client", "compare client"),
    ],
)
def test_advice_for_a_refused_token_request_depends_on_the_answer(reason: str, advice: str) -> None:
    fault = TokenFault(kind=TokenFaultKind.REFUSED, reason=reason)
    assert advice in fault_advice(NO_TOKEN, str(fault))


@pytest.mark.parametrize("detail", [None, "", "a defect", "HTTP 500"])
def test_unknown_token_fault_has_generic_advice(detail: str | None) -> None:
    assert "token_url" in fault_advice(NO_TOKEN, detail)


@pytest.mark.parametrize(
    ("detail", "advice"),
    [
        (None, LOOK_AT_SECRET),
        ("HTTP 401", LOOK_AT_SECRET),
        ("HTTP 401 (invalid_token)", LOOK_AT_SECRET),
        ("HTTP 403 (insufficient_scope)", TOO_FEW_RIGHTS),
    ],
)
def test_too_few_rights_are_not_a_wrong_secret(detail: str | None, advice: str) -> None:
    assert fault_advice(CredentialState.CREDENTIALS_REJECTED, detail) == advice
