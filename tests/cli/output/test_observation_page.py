from datetime import UTC, datetime, timedelta
from io import StringIO

from lifesign.cli.output.observation_page import write_observation
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.observation.assertion import AssertionOutcome, AssertionResult, Check
from lifesign.domain.observation.login import login_of
from lifesign.domain.observation.results import LayerResult, Observation, ProbedDocument, ResultClass

READ_AT = datetime(2026, 11, 22, 12, tzinfo=UTC)
URL = "https://agent.example/"
OK = LayerResult(result=ResultClass.OK)


def shown(seen: Observation, why: str | None = None) -> str:
    stream = StringIO()
    # It is shown long after it was seen: others took their time.
    write_observation(stream, URL, seen.result, seen, now=READ_AT + timedelta(minutes=3), why=why)
    return stream.getvalue()


def test_document_age_is_that_at_the_time_of_reading() -> None:
    document = ProbedDocument(status=HealthStatus.HEALTHY, timestamp=READ_AT - timedelta(seconds=4))
    seen = Observation(target_url=URL, observed_at=READ_AT, readiness=OK, document=document)
    assert "healthy, 4 s old\n" in shown(seen)


def test_tool_list_has_its_own_row() -> None:
    tools = LayerResult(result=ResultClass.TOO_LARGE)
    seen = Observation(target_url=URL, observed_at=READ_AT, discovery=OK, tools=tools)
    assert [line.split()[:2] for line in shown(seen).splitlines()[-1:]] == [["tools", "too_large"]]


def test_required_login_has_its_own_row() -> None:
    gated = LayerResult(result=ResultClass.GATED)
    login = login_of(["Bearer"], ("oauth2",))
    seen = Observation(target_url=URL, observed_at=READ_AT, discovery=OK, transport=gated, login=login)
    last = shown(seen).splitlines()[-1]
    assert (last.split()[0], "bearer" in last, "oauth2" in last) == ("login", True, True)


def test_page_says_alive_with_its_reasons() -> None:
    why = "a card, an interface that answers"
    answers = Observation(target_url=URL, observed_at=READ_AT, transport=OK)
    assert f"alive: {why}\n" in shown(answers, why)
    assert "\nalive: " in shown(answers)
    wrong = AssertionResult(
        of="message", check=Check.TEXT_CONTAINS, result=AssertionOutcome.ASSERTION_FAILED, expected="42"
    )
    with_failure = shown(answers.model_copy(update={"assertions": (wrong,)}), why).splitlines()[1]
    assert with_failure.startswith(f"alive: {why}; 1 ")
    unmeasured = wrong.model_copy(update={"result": AssertionOutcome.NOT_MEASURED})
    line = shown(answers.model_copy(update={"assertions": (wrong, unmeasured)}), why).splitlines()[1]
    assert line.startswith(with_failure)
    assert line.endswith("not measured")
    refused = LayerResult(result=ResultClass.REFUSED, reason="closed")
    assert "\nnot alive: " in shown(
        Observation(target_url=URL, observed_at=READ_AT, transport=refused), "closed"
    )
