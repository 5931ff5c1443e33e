from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.credentials.missing_credentials import (
    OtherCredential,
    credential_of_other,
    missing_credentials,
)
from lifesign.domain.credentials.request_scope import CredentialScope

ORIGIN = "https://agents.acme.example"


def scope(path: str = "/", *, name: str = "acme", origin: str = ORIGIN) -> CredentialScope:
    return CredentialScope(name=name, origin=origin, path=path)


def other(path: str = "/", *, holder: str = "key:b/w", origin: str = ORIGIN) -> OtherCredential:
    return OtherCredential(holder=holder, scope=scope(path, origin=origin))


def test_place_with_an_own_credential_is_not_missing() -> None:
    others = {"key:b": [other("/billing"), other("/"), other("/billing/")]}
    assert missing_credentials([scope("/billing/", name="mine")], others) == [other("/")]
    assert missing_credentials([], others) == [other("/billing"), other("/")]
    assert missing_credentials([scope()], {}) == []


def test_key_with_many_places_does_not_displace_places_of_other_keys() -> None:
    many = [other(f"/{number}", holder="key:a/w") for number in range(500)]
    few = [other(f"/own/{number}", holder="key:b/w") for number in range(5)]
    found = missing_credentials([], {"key:a": many, "key:b": few}, limit=20)
    assert len(found) == 20
    assert set(few) <= set(found)


def test_the_longest_path_decides_whose_credential_is_missing() -> None:
    missing = [other("/"), other("/billing")]
    found = credential_of_other([], missing, f"{ORIGIN}/billing/rpc")
    assert found == other("/billing")
    assert credential_of_other([], missing, f"{ORIGIN}/else") == other("/")
    assert credential_of_other([], missing, "https://elsewhere.example/") is None
    # The prober's own credential is sent if its path is the longer one.
    assert credential_of_other([scope("/billing/eu")], missing, f"{ORIGIN}/billing/eu/rpc") is None
    assert credential_of_other([scope("/")], missing, f"{ORIGIN}/billing") == other("/billing")
    assert credential_of_other([scope("/billing/eu")], missing, f"{ORIGIN}/billing/us") == other("/billing")


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
