"""Credentials that no target's probe sends."""

import pytest

from lifesign.prober.definition.credentials import CredentialSettings
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.definition.unused_credentials import login_hint, unused_credentials

RPC = "https://rpc.example"
TARGET = "https://agents.example/"


def credential(origin: str = RPC, **members: object) -> CredentialSettings:
    return CredentialSettings.model_validate(
        {"name": "rpc", "origin": origin, "bearer": {"env": "X"}, **members}
    )


@pytest.mark.parametrize("directories", [[], [{"url": "https://directory.example/list"}]])
@pytest.mark.parametrize(
    ("target", "for_all_targets", "expected"),
    [
        ("https://rpc.example", False, []),
        ("https://agents.example", False, ["rpc"]),
        ("https://agents.example", True, []),
    ],
)
def test_credential_without_a_target_is_unused(
    directories: list[dict[str, str]], target: str, expected: list[str], *, for_all_targets: bool
) -> None:
    members = {
        "name": "x", "contact": "mailto:x@agent.example", "targets": [target], "directories": directories
    }  # fmt: skip
    given = {"credentials": (credential(for_all_targets=for_all_targets),)}
    definition = ProbeDefinition.model_validate(members).model_copy(update=given)
    assert [each.name for each in unused_credentials(definition)] == expected


@pytest.mark.parametrize(
    ("credentials", "expected"),
    [
        ([], None),
        ([credential()], "card_origins"),
        ([credential(card_origins=["https://agents.example"])], None),
        ([credential("http://rpc.example")], "origin https://rpc.example"),
    ],
)
def test_hint_says_why_no_credential_was_sent(
    credentials: list[CredentialSettings], expected: str | None
) -> None:
    hint = login_hint(TARGET, RPC, credentials)
    assert (hint is None) is (expected is None)
    assert (expected or "") in (hint or "")
