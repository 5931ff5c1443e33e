from dataclasses import replace

import pytest
from pydantic import ValidationError

from lifesign.domain.credentials.acceptance import CredentialState, CredentialStatus
from lifesign.domain.credentials.missing_credentials import OtherCredential
from lifesign.domain.credentials.request_scope import CredentialScope
from lifesign.domain.models import credentials
from lifesign.domain.models.credentials import MAX_STATE_SECONDS, CredentialPlace, missing_of, places_of

CARDS = "https://cards.acme.example"
SCOPE = CredentialScope(
    name="acme", origin="https://agents.acme.example", path="/billing", card_origins=(CARDS,)
)


def test_credential_places_are_unchanged_after_json() -> None:
    state = CredentialState.TOKEN_ERROR
    given = CredentialStatus(scope=SCOPE, state=state, fault_s=1e9, worked_s=2e9, detail="refused: HTTP 401")
    (place,) = places_of([given])
    read = CredentialPlace.model_validate_json(place.model_dump_json())
    assert (read.scope, read.state, read.detail) == (SCOPE, state, given.detail)
    assert read.fault_seconds == read.worked_seconds == MAX_STATE_SECONDS
    (missing,) = missing_of("key:a/w", [OtherCredential(holder="key:b/w", scope=SCOPE)])
    assert (missing.holder, missing.held_by) == ("key:a/w", "key:b/w")
    assert missing.other == OtherCredential(
        holder="key:b/w", scope=replace(SCOPE, card_origins=()), target_origins=(SCOPE.origin, CARDS)
    )


def test_number_of_claimed_card_origins_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "MAX_CLAIMED_CARD_ORIGINS", 3)
    scope = replace(SCOPE, card_origins=(CARDS, "https://b.example"))
    places = places_of([CredentialStatus(scope=scope)] * 3)
    assert [len(place.card_origins) for place in places] == [2, 1, 0]


@pytest.mark.parametrize(
    "members",
    [
        {"name": "ACME"},
        {"name": "a" * 65},
        {"name": "a\n"},
        {"origin": "ftp://agents.acme.example"},
        {"origin": "https://agents.acme.example/billing"},
        {"origin": "https://user@agents.acme.example"},
        {"origin": "https://agents.acme.example?x"},
        {"origin": "https://" + "a" * 301},
        {"origin": "https://agents.acme.example\x1b[2J"},
        {"path": "billing"},
        {"path": "/" + "a" * 512},
        {"path": "/a b"},
        {"card_origins": ["https://cards.acme.example/a"]},
        {"card_origins": ["https://cards.acme.example"] * 101},
        {"bearer": "a secret"},
        {"detail": "two\nlines"},
        {"detail": "a" * 201},
        {"detail": ""},
    ],
)
def test_invalid_credential_places_are_refused(members: dict[str, object]) -> None:
    least = {"name": "acme", "origin": "https://agents.acme.example"}
    CredentialPlace.model_validate(least)
    with pytest.raises(ValidationError):
        CredentialPlace.model_validate(least | members)
