"""Task ids on the command line."""

import re

import typer

_MAX_SHOWN_CHARS = 80


def read_task_id(text: str) -> str:
    """Return the id of a task; typer.BadParameter for an invalid one, before any request."""
    # Models take half a second, which `--help` does not need.
    from lifesign.domain.models.tasks import TASK_ID_PATTERN  # noqa: PLC0415

    if not re.fullmatch(TASK_ID_PATTERN, text):
        example = "task_01jd8w3q5t6v7x9zabcdefghjk"
        raise typer.BadParameter(
            f"expected the id of a task, such as {example}; got {text[:_MAX_SHOWN_CHARS]!r}"
        )
    return text
