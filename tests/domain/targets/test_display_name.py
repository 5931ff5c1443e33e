import pytest

from lifesign.domain.targets.display_name import display_name, has_readable_id, place_of
from lifesign.domain.targets.target import target_id


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://agent.example/", "agent.example"),
        ("https://agent.example:8443/", "agent.example:8443"),
        ("https://agent.example/a2a/", "agent.example/a2a/"),
        ("https://agent.example/?agent=1", "agent.example/?agent=1"),
        # Another target than the one by https.
        ("http://127.0.3.24:18300/", "http://127.0.3.24:18300"),
        ("https://xn--bcher-kva.example/", "xn--bcher-kva.example"),
    ],
)
def test_unnamed_target_is_shown_by_host_and_path(url: str, place: str) -> None:
    assert place_of(url) == place
    assert display_name(target_id(url), None, url) == place
    assert display_name(target_id(url), "", url) == place


def test_agent_is_shown_by_its_name_else_by_its_id() -> None:
    assert display_name("billing-1", "Billing", None) == "Billing"
    assert display_name(target_id("https://agent.example/"), "Billing", "https://agent.example/") == "Billing"
    assert display_name("billing-1") == "billing-1"


def test_target_id_does_not_reveal_the_url() -> None:
    assert has_readable_id("billing-1")
    assert has_readable_id("tgt_mine")
    assert not has_readable_id(target_id("https://agent.example/"))
