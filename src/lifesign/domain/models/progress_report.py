"""Progress reports of an agent (lease protocol, "Progress reports").

The next holder of the task continues from the latest report.
"""

from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError, to_json

from lifesign.domain.models.base import Body

MAX_REPORT_BYTES = 65_536
"""Maximum size of a report as JSON in UTF-8."""
MAX_ENTRIES = 1_000
"""Maximum length of a list in a report."""

Text = Annotated[str, Field(min_length=1, max_length=MAX_REPORT_BYTES)]


class Attempt(Body):
    """Something that the agent tried, and its result."""

    action: Text
    outcome: Text


class ProgressReport(Body):
    """A progress report, from which another holder can continue; at most 64 KiB."""

    model_config = ConfigDict(populate_by_name=True)

    summary: Text
    """Work since the last report."""
    beliefs: Annotated[list[Text], Field(max_length=MAX_ENTRIES)] = Field(default_factory=list)
    """Facts that the agent assumes."""
    attempted: Annotated[list[Attempt], Field(max_length=MAX_ENTRIES)] = Field(default_factory=list)
    next_step: Annotated[Text | None, Field(alias="nextStep")] = None
    blockers: Annotated[list[Text], Field(max_length=MAX_ENTRIES)] = Field(default_factory=list)
    """Obstacles."""

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        if len(to_json(self.members())) > MAX_REPORT_BYTES:
            raise PydanticCustomError(
                "too_large", "expected at most {most} bytes", {"most": MAX_REPORT_BYTES}
            )
        return self

    def members(self) -> dict[str, Any]:
        """Return the report as JSON members, as it is sent and stored."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
