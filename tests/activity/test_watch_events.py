from lifesign.activity.watch_events import Once, WatchEvent, WatchEventKind


def test_same_message_is_logged_once_until_it_changes() -> None:
    event: list[WatchEvent] = []
    once = Once(event.append)
    for agent_id, text in [("a", "gone"), ("a", "gone"), ("b", "gone"), ("a", "no key"), ("a", "gone")]:
        once.emit("refused", WatchEvent(what=WatchEventKind.REFUSED, text=text, agent_id=agent_id))
    assert [(one.agent_id, one.text) for one in event] == [
        ("a", "gone"), ("b", "gone"), ("a", "no key"), ("a", "gone"),
    ]  # fmt: skip


def test_message_is_logged_again_after_its_cause_ended() -> None:
    event: list[WatchEvent] = []
    once = Once(event.append)
    assert not once.is_over("registry")
    for _ in range(2):
        once.emit("registry", WatchEvent(what=WatchEventKind.REGISTRY_UNREACHABLE, text="away"))
        assert once.is_over("registry")
        assert not once.is_over("registry")
    assert len(event) == 2
