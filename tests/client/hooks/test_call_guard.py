import logging
from collections.abc import Sequence

import pytest

from lifesign.client.hooks import call_guard
from lifesign.client.hooks.call_guard import CallGuard, CallRefused
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.observation.decision import Action, Decision
from lifesign.errors import InvalidValue, LifesignError

URL = "https://agent.example/"
LOGGER = call_guard.__name__


def decision(action: Action, reason: str = "as scripted") -> Decision:
    return Decision(action, HealthStatus.UNKNOWN, (reason, "and more"), None)


class Adviser:
    """Gives these decisions one after another, the last one again and again."""

    def __init__(self, decisions: Sequence[Decision]) -> None:
        self.decisions = list(decisions)
        self.asked: list[tuple[str, float]] = []

    async def __call__(self, url: str, *, timeout_seconds: float) -> Decision:
        self.asked.append((url, timeout_seconds))
        return self.decisions.pop(0) if len(self.decisions) > 1 else self.decisions[0]


@pytest.mark.parametrize("action", [action for action in Action if action is not Action.AVOID])
async def test_only_an_agent_to_avoid_causes_a_warning(
    action: Action, caplog: pytest.LogCaptureFixture
) -> None:
    adviser = Adviser([decision(action)])
    for refuse in (False, True):
        guard = CallGuard(refuse=refuse, timeout_seconds=2, ask=adviser)
        assert (await guard.check(URL)).action is action
    assert adviser.asked == [(URL, 2)] * 2
    assert caplog.records == []


async def test_one_warning_is_logged_for_each_time_that_the_advice_becomes_to_avoid(
    caplog: pytest.LogCaptureFixture,
) -> None:
    avoid, proceed = decision(Action.AVOID), decision(Action.PROCEED)
    guard = CallGuard(ask=Adviser([avoid, avoid, proceed, avoid, avoid]))
    warnings = []
    for _ in range(5):
        await guard.check(URL)
        warnings.append(len(caplog.records))
    assert warnings == [1, 1, 1, 2, 2]
    assert {(record.name, record.levelno) for record in caplog.records} == {(LOGGER, logging.WARNING)}


async def test_a_guard_that_refuses_raises_the_decision(caplog: pytest.LogCaptureFixture) -> None:
    avoid = decision(Action.AVOID)
    guard = CallGuard(refuse=True, ask=Adviser([avoid]))
    with pytest.raises(CallRefused) as refused:
        await guard.check(URL)
    assert isinstance(refused.value, LifesignError)
    assert (refused.value.url, refused.value.decision) == (URL, avoid)
    assert caplog.records == []


async def test_passwords_and_control_characters_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    adviser = Adviser([decision(Action.AVOID, "\x1b[2Jred\nalert")])
    url = "https://user:secret@agent.example/"
    await CallGuard(ask=adviser).check(url)
    with pytest.raises(CallRefused) as refused:
        await CallGuard(refuse=True, ask=adviser).check(url)
    for text in (caplog.messages[0], str(refused.value)):
        assert text.isprintable()
        assert "secret" not in text
        assert "agent.example" in text


async def test_number_of_remembered_warnings_is_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_guard, "MAX_WARNED", 2)
    guard = CallGuard(ask=Adviser([decision(Action.AVOID)]))
    for number in (1, 2, 1, 3, 1, 2):
        await guard.check(f"{URL}{number}")
    # URL 3 evicted URL 2, the least recently used one.
    assert [message.partition(" ")[0] for message in caplog.messages] == [f"{URL}{n}" for n in (1, 2, 3, 2)]


@pytest.mark.parametrize("seconds", [0, -1, 301, float("nan")])
def test_the_time_limit_is_checked_at_once(seconds: float) -> None:
    with pytest.raises(InvalidValue):
        CallGuard(timeout_seconds=seconds)
