from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from lifesign.domain.models.tasks import (
    MAX_DETAIL_CHARACTERS,
    CommentRecord,
    Detail,
    RunRecord,
    Title,
    detail_of,
    run_end_text,
)
from lifesign.domain.tasks.task_states import ExitReason, TaskSignal

DETAIL = TypeAdapter(Detail)


def test_control_characters_of_a_detail_are_replaced() -> None:
    assert detail_of("ValueError: no\x00 \x1b[31mcustomer\ud800\nat all") == (
        "ValueError: no\ufffd \ufffd[31mcustomer\ufffd\ufffdat all"
    )


@given(st.text(st.characters(codec=None), min_size=1, max_size=2 * MAX_DETAIL_CHARACTERS))
def test_any_output_becomes_a_valid_detail(message: str) -> None:
    assert DETAIL.validate_python(detail_of(message)) == detail_of(message)


@pytest.mark.parametrize("message", ["", "x" * (MAX_DETAIL_CHARACTERS + 1)])
def test_empty_or_too_long_detail_is_refused(message: str) -> None:
    with pytest.raises(ValidationError):
        DETAIL.validate_python(message)


@pytest.mark.parametrize("title", [" ", "\u200b\u3000", "\ufeff"])
def test_invisible_title_is_refused(title: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Title).validate_python(title)
    assert caught.value.errors()[0]["type"] == "blank"
    assert TypeAdapter(Title).validate_python(f"{title}x") == f"{title}x"


ENDED_AT = datetime(2026, 11, 22, 10, tzinfo=UTC)


def comment(signal: TaskSignal) -> CommentRecord:
    return CommentRecord(signal=signal, comment="which customer?", written_at=ENDED_AT)


@pytest.mark.parametrize(
    ("exit_reason", "comments", "text"),
    [
        (None, [], "under way"),
        (ExitReason.NO_PROGRESS, [], "no progress"),
        (ExitReason.COMPLETED, [], "completed"),
        (ExitReason.COMPLETED, [comment(TaskSignal.HELP_REQUESTED)], "asked for help"),
        (ExitReason.COMPLETED, [comment(TaskSignal.ACCEPTED)], "completed"),
        (ExitReason.CRASH, [comment(TaskSignal.HELP_REQUESTED)], "crash"),
    ],
)
def test_run_that_ended_with_a_question_is_not_shown_as_completed(
    exit_reason: ExitReason | None, comments: list[CommentRecord], text: str
) -> None:
    ended_at = None if exit_reason is None else ENDED_AT
    run = RunRecord(
        run_id="run_1",
        number=1,
        fencing_token=1,
        began_at=datetime(2026, 11, 22, 9, tzinfo=UTC),
        ended_at=ended_at,
        exit_reason=exit_reason,
    )
    assert run_end_text(run, comments) == text
