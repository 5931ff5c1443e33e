import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.credentials.request_scope import (
    SENDING,
    CredentialScope,
    Purpose,
    ScopeIndex,
    Sending,
    scope_for,
)

BILLING = CredentialScope(name="billing", origin="https://agents.acme.example", path="/billing")
WHOLE = CredentialScope(name="whole", origin="https://agents.acme.example")


def test_only_requests_behind_a_login_carry_a_credential() -> None:
    assert set(SENDING) == set(Purpose)
    by_sending = {
        sending: {purpose.value for purpose in Purpose if SENDING[purpose] is sending} for sending in Sending
    }
    assert by_sending == {
        "always": {"endpoint", "interface", "message", "path"},
        "after_refusal": {"card", "health"},
        "never": {"other"},
    }


@pytest.mark.parametrize(
    "url",
    [
        "https://agents.acme.example/billing",
        "https://agents.acme.example/billing/",
        "https://agents.acme.example:443/billing/v1/rpc?task=1",
        "https://agents.acme.example/billing?next=/../x",
        "https://AGENTS.acme.example/billing/b%20c",
        "https://agents.acme.example./billing",
    ],
)
def test_path_and_all_below_it_are_covered(url: str) -> None:
    assert BILLING.covers(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://agents.acme.example/",
        "https://agents.acme.example",
        "https://agents.acme.example/billingx",
        "https://agents.acme.example/Billing",
        "https://agents.acme.example/billing/../admin",
        "https://agents.acme.example/billing/%2e%2E/admin",
        "https://agents.acme.example/billing//admin",
        "https://agents.acme.example//billing",
        "https://agents.acme.example/billing/..%2fadmin",
        "https://agents.acme.example/billing/..%3F",
        "https://agents.acme.example/billing/x%23y",
        "https://agents.acme.example/billing/..%5cadmin",
        "https://agents.acme.example/billing/%252e%252e/admin",
        "https://agents.acme.example/%62illing",
        "https://agents.acme.example/%2562illing",
        "https://agents.acme.example/billing/%2561dmin",
        "https://agents.acme.example/billing/%25252525252e/admin",
        "https://agents.acme.example/billing/..;/admin",
        "https://agents.acme.example/billing/..%00/admin",
        "https://agents.acme.example/billing/..%20/admin",
        "https://agents.acme.example/billing/..%09/admin",
        "https://agents.acme.example/billing/%C0%AE%C0%AE/admin",
        "https://agents.acme.example/billing/..%C0%AFadmin",
        "https://agents.acme.example/billing/%EF%BC%8E%EF%BC%8E/admin",
        "https://agents.acme.example/billing/%u002e%u002e/admin",
        "https://agents.acme.example/billing/%E2%80%A5/admin",
        "https://agents.acme.example/billing/%EF%B9%92%EF%B9%92/admin",
        "https://agents.acme.example/x/billing",
        "http://agents.acme.example/billing",
        "https://agents.acme.example:8443/billing",
        "https://agents.acme.example.evil.example/billing",
        "https://agents.acme.example@evil.example/billing",
        "https://evil.example/?https://agents.acme.example/billing",
        "https://agents.acrne.example/billing",
    ],
)
def test_urls_outside_the_scope_are_not_covered(url: str) -> None:
    assert not BILLING.covers(url)


def test_credential_with_the_longest_matching_path_is_used() -> None:
    scopes = [WHOLE, BILLING]
    assert scope_for(scopes, "https://agents.acme.example/billing/x") is BILLING
    assert scope_for(scopes, "https://agents.acme.example/other") is WHOLE
    assert scope_for([WHOLE], "https://agents.acme.example/x//..;/y") is WHOLE
    assert scope_for(scopes, "https://other.example/billing") is None
    assert scope_for([], "https://agents.acme.example/") is None


@pytest.mark.parametrize(
    "path",
    [
        "//billing/x",
        "/x/..%2fbilling",
        "/billing%2fx",
        "/x/../billing",
        "/BILLING/x",
        "/billing%20/x",
        "/billing.",
        "/%62illing/x",
        "/billing2",
        "/Billing.json",
    ],
)
def test_url_at_the_path_of_another_credential_on_some_servers_gets_none(path: str) -> None:
    url = f"https://agents.acme.example{path}"
    assert scope_for([WHOLE, BILLING], url) is None
    assert ScopeIndex([WHOLE, BILLING]).find(url) is None
    assert ScopeIndex([WHOLE, BILLING]).find_ambiguous(url) is BILLING
    assert scope_for([WHOLE], url) is WHOLE


def test_path_that_only_begins_with_that_of_a_credential_needs_none() -> None:
    """Nothing is withheld there: its failures count."""
    assert ScopeIndex([BILLING]).find_ambiguous("https://agents.acme.example/billing2") is None


def test_escaped_character_of_the_path_belongs_to_no_scope() -> None:
    """A gateway that compares paths as they are written sends the URL to another agent."""
    scope = CredentialScope(name="ops", origin=WHOLE.origin, path="/ops+team")
    assert scope_for([scope], f"{WHOLE.origin}/ops+team/rpc") is scope
    assert scope_for([scope, WHOLE], f"{WHOLE.origin}/ops%2Bteam/rpc") is None
    assert ScopeIndex([scope, WHOLE]).find_ambiguous(f"{WHOLE.origin}/ops%2Bteam/rpc") is scope
    assert not scope.covers(f"{WHOLE.origin}/ops%2Bteam/rpc")
    assert not scope.is_for_target(f"{WHOLE.origin}/ops%2Bteam")


def test_paths_that_differ_in_case_only_have_a_credential_each() -> None:
    scopes = [CredentialScope(name=path, origin=WHOLE.origin, path=path) for path in ("/a", "/A")]
    assert [scope_for(scopes, WHOLE.origin + scope.path) for scope in scopes] == scopes


@pytest.mark.parametrize(
    ("target", "is_for_it"),
    [
        ("", True),
        ("/", True),
        ("/billing", True),
        ("/%62illing", False),
        ("/billing/eu", False),
        ("/orders", False),
        ("/bill", False),
        ("/orders/..%2fbilling", False),
        ("?agent=orders", False),
        ("/billing?agent=orders", False),
    ],
)
def test_target_of_another_path_may_not_choose_requests(target: str, *, is_for_it: bool) -> None:
    assert BILLING.is_for_target(f"https://agents.acme.example{target}") is is_for_it


@given(st.text(alphabet="abc./%2eE5c;\\?#@:", max_size=30))
def test_covered_path_begins_with_the_scope_whatever_follows(rest: str) -> None:
    url = f"https://agents.acme.example/{rest}"
    if BILLING.covers(url):
        assert rest.startswith("billing")
        assert ".." not in rest.partition("?")[0].partition("#")[0].split("/")


HOSTS = ["agents.acme.example", "AGENTS.acme.example", "other.example", "127.0.0.1", "[::1]"]
ORIGINS = st.builds(
    "{}://{}{}".format,
    st.sampled_from(["https", "http"]),
    st.sampled_from(HOSTS),
    st.sampled_from(["", ":443", ":80"]),
)
PLACES = st.sampled_from(["", "/", "/billing", "/billing/x", "/billing/..;/x", "/other?a=1"])


@given(st.lists(st.tuples(ORIGINS, st.sampled_from(["/", "/billing"])), max_size=8), ORIGINS, PLACES)
def test_scope_index_agrees_with_a_linear_search(
    places: list[tuple[str, str]], origin: str, place: str
) -> None:
    scopes = [
        CredentialScope(name=f"n{number}", origin=origin, path=path)
        for number, (origin, path) in enumerate(places)
    ]
    assert ScopeIndex(scopes).find(origin + place) == scope_for(scopes, origin + place)
