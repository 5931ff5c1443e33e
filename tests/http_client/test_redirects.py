import pytest
from yarl import URL

from lifesign.domain.credentials.secret import Scrubber
from lifesign.http_client.redirects import next_hop, refusal, resolve_url

HERE = URL("https://agent.example/a/health")


def is_followed(target: str, *, url: URL = HERE, has_token: bool = False, may_leave: bool = False) -> bool:
    return refusal(url, resolve_url(url, target), has_token=has_token, may_leave_origin=may_leave) is None


@pytest.mark.parametrize("has_token", [False, True])
@pytest.mark.parametrize(
    "target",
    ["/other", "other?x=1#y", "//agent.example/x", "https://AGENT.example.:443/x", ""],
)
def test_redirect_within_the_origin_is_followed(target: str, *, has_token: bool) -> None:
    assert is_followed(target, has_token=has_token)


@pytest.mark.parametrize("may_leave", [False, True])
@pytest.mark.parametrize(
    "target", ["http://agent.example/a/health", "http://agent.example:443/", "http://other/"]
)
def test_redirect_from_https_to_http_is_refused(target: str, *, may_leave: bool) -> None:
    assert not is_followed(target, may_leave=may_leave)


@pytest.mark.parametrize(
    "target", ["https://other.example/", "https://agent.example:8443/", "//agent.example.:8443/"]
)
def test_another_origin_is_followed_only_for_cards_and_never_with_a_token(target: str) -> None:
    assert not is_followed(target)
    assert is_followed(target, may_leave=True)
    assert not is_followed(target, may_leave=True, has_token=True)


def test_upgrade_to_https_on_one_host_is_followed_unless_a_token_is_sent() -> None:
    plain = URL("http://agent.example/")
    assert is_followed("https://agent.example/", url=plain)
    assert not is_followed("https://agent.example/", url=plain, has_token=True)
    assert not is_followed("https://agent.example:8443/", url=plain)
    assert not is_followed("https://agent.example/", url=URL("http://agent.example:8080/"))
    assert not is_followed("https://other.example/", url=plain)


@pytest.mark.parametrize(
    "target",
    ["ftp://agent.example/", "https://[", "javascript:1", "https://agent.example:0/",
     "https://agent.example:99999/", "/" + "x" * 2048, "https://me:secret@agent.example/", "http://[::1]@"],
)  # fmt: skip
def test_uncallable_url_is_never_followed(target: str) -> None:
    assert not is_followed(target, may_leave=True)


def test_redirect_refusal_has_a_short_reason() -> None:
    target = resolve_url(HERE, "https://other.example/" + "\u202e" * 500)
    reason = refusal(HERE, target, has_token=False, may_leave_origin=False)
    assert reason is not None
    assert len(reason) < 200
    assert reason.isascii()


@pytest.mark.parametrize(
    "location",
    ["/log?key=abcd/efgh", "https://other.example/abcd%2Fefgh", "https://abcd.efgh.example/",
     "/abcd/./efgh", "//abcd\uff0eefgh.example/"],
)  # fmt: skip
def test_url_with_a_secret_is_not_followed(location: str) -> None:
    scrubber = Scrubber(["abcd/efgh", "abcd.efgh"])
    refused = next_hop(HERE, location, followed=0, has_token=False, may_leave_origin=True, scrubber=scrubber)
    assert isinstance(refused, str)
    assert "abcd" not in refused
    assert isinstance(next_hop(HERE, location, followed=0, has_token=False, may_leave_origin=True), URL)
