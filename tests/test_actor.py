import pytest

from agent_health.actor import OwnActor, is_reserved
from agent_health.registry.change_status import MONITOR
from agent_health.registry.deliver_webhooks import COURIER
from agent_health.registry.erase_archives import ARCHIVIST


@pytest.mark.parametrize("name", [*OwnActor, "Monitor", "SERVER", "key:", "key:x", "KEY:x"])
def test_nobody_else_acts_by_the_name_of_a_part_or_a_key(name: str) -> None:
    assert is_reserved(name)


@pytest.mark.parametrize("name", ["monitor-1", "my-server", "keys", "key", "a:key:x"])
def test_other_names_are_free(name: str) -> None:
    assert not is_reserved(name)


def test_every_part_acts_by_a_name_that_is_reserved() -> None:
    assert {ARCHIVIST, MONITOR, COURIER} <= set(OwnActor)
