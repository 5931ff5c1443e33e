import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.credentials.acceptance import CredentialState
from lifesign.domain.credentials.missing_credentials import (
    MAX_IDLE_SECONDS,
    OtherCredential,
    credential_of_other,
    may_work,
    missing_credentials,
)
from lifesign.domain.credentials.request_scope import CredentialScope

ORIGIN = "https://agents.acme.example"
NOW_S = 1_000_000.0


CARDS = "https://cards.acme.example"


def scope(path: str = "/", *card_origins: str, name: str = "acme") -> CredentialScope:
    return CredentialScope(name=name, origin=ORIGIN, path=path, card_origins=card_origins)


def other(path: str = "/", *card_origins: str, holder: str = "key:b/w") -> OtherCredential:
    return OtherCredential(holder=holder, scope=scope(path, *card_origins))


def missed(credential: OtherCredential, *target_origins: str) -> OtherCredential:
    return replace(credential, target_origins=target_origins)


def test_place_with_an_own_credential_is_not_missing() -> None:
    others = {"key:b": [other("/billing"), other("/"), other("/billing/")]}
    assert missing_credentials([scope("/billing/", name="mine")], others) == [missed(other("/"), ORIGIN)]
    found = [missed(other("/billing"), ORIGIN), missed(other("/"), ORIGIN)]
    assert missing_credentials([], others) == found
    assert missing_credentials([scope()], {}) == []


def test_credential_is_missing_for_the_card_origins_of_others_only() -> None:
    theirs = other("/", CARDS, "https://b.example")
    others = {"key:b": [theirs], "key:c": [other("/", "https://c.example", holder="key:c/w")]}
    found = missing_credentials([scope("/", "https://b.example")], others)
    assert found == [missed(theirs, CARDS, "https://c.example")]
    assert missing_credentials([scope("/", CARDS)], {"key:b": [other("/", CARDS)]}) == []
    assert missing_credentials([], others, limit=2) == [missed(theirs, ORIGIN, CARDS)]
    own, url = [scope()], f"{ORIGIN}/rpc"
    assert credential_of_other(own, found, url, f"{CARDS}/agent") == found[0]
    assert credential_of_other(own, found, url, ORIGIN) is None
    assert credential_of_other(own, found, url, "https://b.example") is None


def test_key_with_many_places_does_not_displace_places_of_other_keys() -> None:
    many = [other(f"/{number}", holder="key:a/w") for number in range(500)]
    few = [other(f"/own/{number}", holder="key:b/w") for number in range(5)]
    found = missing_credentials([], {"key:a": many, "key:b": few}, limit=20)
    assert len(found) == 20
    assert {missed(each, ORIGIN) for each in few} <= set(found)


def test_the_longest_path_decides_whose_credential_is_missing() -> None:
    missing = [other("/"), other("/billing")]
    found = credential_of_other([], missing, f"{ORIGIN}/billing/rpc", ORIGIN)
    assert found == other("/billing")
    assert credential_of_other([], missing, f"{ORIGIN}/else", ORIGIN) == other("/")
    assert credential_of_other([], missing, "https://elsewhere.example/", ORIGIN) is None
    # The prober's own credential is sent if its path is the longer one.
    assert credential_of_other([scope("/billing/eu")], missing, f"{ORIGIN}/billing/eu/rpc", ORIGIN) is None
    assert credential_of_other([scope("/")], missing, f"{ORIGIN}/billing", ORIGIN) == other("/billing")
    assert credential_of_other([scope("/billing/eu")], missing, f"{ORIGIN}/billing/us", ORIGIN) == other(
        "/billing"
    )


PATHS = st.sampled_from(["/", "/a", "/a/", "/a/b", "/b"])


@given(own=st.lists(PATHS), others=st.dictionaries(st.sampled_from("abc"), st.lists(PATHS)))
def test_each_missing_place_is_listed_once_and_has_no_own_credential(
    own: list[str], others: dict[str, list[str]]
) -> None:
    mine = [scope(path) for path in own]
    theirs = {key: [other(path, holder=f"{key}/w") for path in paths] for key, paths in others.items()}
    places = [each.scope.place for each in missing_credentials(mine, theirs)]
    assert len(places) == len(set(places))
    wanted = {each.scope.place for many in theirs.values() for each in many}
    assert set(places) == wanted - {each.place for each in mine}


@pytest.mark.parametrize(
    ("state", "worked_s", "own_worked_s", "may"),
    [
        (None, None, None, "not"),
        (None, 10.0, None, "work"),
        (None, 10.0, 11.0, "work"),
        (None, 10.0, 10.0, "not"),
        (CredentialState.WORKS, 10.0, 9.0, "not"),
        (None, MAX_IDLE_SECONDS - 1.0, None, "work"),
        (None, MAX_IDLE_SECONDS, None, "not"),
        # Its prober has a long interval.
        (CredentialState.WORKS, MAX_IDLE_SECONDS, None, "work"),
    ],
)
def test_credential_that_worked_last_may_work(
    state: CredentialState | None, worked_s: float | None, own_worked_s: float | None, may: str
) -> None:
    best_s = -math.inf if own_worked_s is None else NOW_S - own_worked_s
    worked_at_s = None if worked_s is None else NOW_S - worked_s
    assert may_work(state, worked_at_s, best_s, NOW_S) is (may == "work")
