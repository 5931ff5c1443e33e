import pytest

from lifesign.domain.access.event_actor import (
    OwnActor,
    display_actor,
    is_reserved,
    keys_acting,
    keys_in_words,
    with_key_names,
)
from lifesign.registry.events.deliver_webhooks import COURIER
from lifesign.registry.events.erase_archives import ARCHIVIST
from lifesign.registry.status_changes.agent_status import MONITOR


@pytest.mark.parametrize("name", [*OwnActor, "Monitor", "SERVER", "key:", "key:x", "KEY:x"])
def test_reserved_actor_names_are_refused(name: str) -> None:
    assert is_reserved(name)


@pytest.mark.parametrize("name", ["monitor-1", "my-server", "keys", "key", "a:key:x"])
def test_unreserved_actor_names_are_accepted(name: str) -> None:
    assert not is_reserved(name)


def test_actor_names_of_the_registrys_components_are_reserved() -> None:
    assert {ARCHIVIST, MONITOR, COURIER} <= set(OwnActor)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("key:key_1", "ops, key:key_1"),
        ("key:key_1/worker-2", "ops, key:key_1/worker-2"),
        ("key:key_2", "key:key_2"),
        ("key_1", "key_1"),
        ("billing-1", "billing-1"),
        ("monitor", "monitor"),
    ],
)
def test_actor_id_is_shown_with_the_name_of_the_key(name: str, read: str) -> None:
    assert display_actor(name, {"key:key_1": "ops", "billing-1": "x", "monitor": "y"}) == read


def test_key_ids_within_a_text_are_replaced_by_key_names() -> None:
    names = {"key:key_1": "ops", "key:key_2": "none of these"}
    assert keys_in_words("key:key_1 key: and key:key_3/w") == {
        "key:key_1",
        "key:key_3",
    }
    assert with_key_names("by key:key_1", names) == "by ops, key:key_1"
    assert with_key_names("monkey:key_2 and key:key_22", names) == "monkey:key_2 and key:key_22"


def test_keys_of_an_event_are_found_as_actor_holder_and_writer() -> None:
    payload = {
        "holder": "key:key_2/a",
        "writer": "billing-1",
        "agent_id": "key:key_3",
        "shards": ["key:key_4"],
    }
    assert keys_acting("key:key_1", payload) == {"key:key_1", "key:key_2"}
    assert keys_acting("monitor", {"erased": "0" * 64, "holder": 3}) == set()
