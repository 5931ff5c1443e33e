"""Settings of the recorder and the middleware, and their validation."""

import fnmatch
import importlib.util
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StrictInt,
    ValidationError,
    model_validator,
)
from pydantic.types import Strict
from pydantic_core import PydanticCustomError

from lifesign.domain.common.project import install_command
from lifesign.domain.health.outcome import CountingProfile
from lifesign.errors import InvalidValue

Moment = datetime | Callable[[], datetime | None] | None
"""A time with its zone, or a function that returns one (None if unknown) whenever the document is made."""


def _is_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError
    return text


def _locks_exist(path: Path) -> Path:
    if importlib.util.find_spec("fcntl") is None or not str(path).isprintable():
        raise ValueError
    # The process may change its directory before it opens the files.
    return path.absolute()


METRICS_FAULT = "metrics_fault"

_Seconds = Annotated[float, Strict()]
_Text = Annotated[str, AfterValidator(_is_printable)]
_Moment = Annotated[AwareDatetime, Strict()] | Callable[[], datetime | None] | None
_MOMENT = "a datetime with a time zone, a function that returns one, or None"
_Glob = Annotated[str, Field(pattern=r"^[/*]")]
_GLOBS = "a list of path patterns such as ['/internal/*'], each beginning with / or *"


class _DescribedSettings(BaseModel):
    """Settings whose field descriptions say what is expected, in error messages too."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def checked(cls, **given: Any) -> Self:
        """Return the settings after a check; InvalidValue for the first wrong one."""
        try:
            return cls(**given)
        except ValidationError as error:
            fault = error.errors()[0]
            of_all = "metrics_path" if fault["type"] == METRICS_FAULT else "detail_token"
            name = str((fault["loc"] or (of_all,))[0])
            expected = cls.model_fields[name].description or ""
            shown = "(not shown)" if name == "detail_token" else given[name]
            # Neither the message nor the chain of causes may show a secret.
            raise InvalidValue(name, shown, expected) from None


class RecorderSettings(_DescribedSettings):
    """The settings of `AgentHealth`."""

    agent_id: Annotated[_Text, Field(min_length=1, max_length=2048)] = Field(
        description="1 to 2048 printable characters, best the URL of the agent's card"
    )
    window_seconds: Annotated[_Seconds, Field(ge=300, le=604_800)] = Field(
        description="a number of seconds from 300 (5 min) to 604800 (7 days)"
    )
    refresh_seconds: Annotated[_Seconds, Field(ge=1, le=3600)] = Field(
        description="a number of seconds from 1 to 3600"
    )
    baseline_p99_ms: Annotated[_Seconds, Field(gt=0, le=3_600_000)] | None = Field(
        description="a number of milliseconds above 0, up to 3600000 (1 h), or None"
    )
    counting: CountingProfile = Field(description="'literal', 'interactions' or 'server_faults'")
    state_dir: Annotated[Path, AfterValidator(_locks_exist)] | None = Field(
        description="the path of a directory (on a POSIX system, for its file locks), or None"
    )
    model_changed_at: _Moment = Field(description=_MOMENT)
    capabilities_updated_at: _Moment = Field(description=_MOMENT)

    @property
    def window_ns(self) -> int:
        """Length of the window in nanoseconds."""
        return int(self.window_seconds * 1e9)

    @property
    def refresh_ns(self) -> int:
        """Interval at which the document is computed again, in nanoseconds."""
        return int(self.refresh_seconds * 1e9)


class MiddlewareSettings(_DescribedSettings):
    """The settings that `AgentHealthMiddleware` has in addition to those of `AgentHealth`."""

    path: Annotated[_Text, Field(pattern=r"^/[^/?#* ][^?#* ]*$", max_length=1024)] = Field(
        description="an absolute path without query, such as /.well-known/agent-health"
    )
    timeout_seconds: Annotated[_Seconds, Field(gt=0, le=86_400)] = Field(
        description="a number of seconds above 0, up to 86400 (1 day)"
    )
    include: Annotated[Sequence[_Glob], Field(min_length=1)] | None = Field(description=_GLOBS + ", or None")
    exclude: Sequence[_Glob] = Field(description=_GLOBS)
    detail: Literal["full", "coarse"] = Field(description="'full' or 'coarse'")
    detail_token: Annotated[SecretStr, Field(min_length=16, max_length=1024)] | None = Field(
        description="16 to 1024 visible ASCII characters with detail='coarse' ('full' needs none), or None"
    )
    metrics_path: Annotated[_Text, Field(pattern=r"^/[^/?#* ][^?#* ]*$", max_length=1024)] | None = Field(
        description="an absolute path without query, like /metrics, or None; with detail='coarse' it needs "
        f"a detail_token, and prometheus-client must be installed ({install_command('metrics')})"
    )
    max_inspected_bytes: Annotated[StrictInt, Field(ge=0, le=16_777_216)] = Field(
        description="a whole number of bytes from 0 (inspect nothing) to 16777216 (16 MiB)"
    )
    stream_latency: Literal["first_byte", "last_byte"] = Field(description="'first_byte' or 'last_byte'")

    @model_validator(mode="after")
    def _token_fits(self) -> Self:
        if self.detail_token is not None:
            is_visible = re.fullmatch("[!-~]+", self.detail_token.get_secret_value())
            if not is_visible or self.detail == "full":
                raise ValueError
        return self

    @model_validator(mode="after")
    def _check_metrics_path(self) -> Self:
        if self.metrics_path is None:
            return self
        is_installed = importlib.util.find_spec("prometheus_client") is not None
        is_open = self.detail == "coarse" and self.detail_token is None
        if is_open or self.metrics_path == self.path or not is_installed:
            raise PydanticCustomError(METRICS_FAULT, "see metrics_path")
        return self

    def excludes(self) -> Callable[[str], object] | None:
        """Return a function that says whether a path is excluded; None if no path is.

        Excluded are paths that match a pattern of `exclude`, or none of `include`.
        """
        patterns = [fnmatch.translate(glob) for glob in self.exclude]
        if self.include is not None:
            patterns.append("(?!" + "|".join(map(fnmatch.translate, self.include)) + ")")
        return re.compile("|".join(patterns)).match if patterns else None


def moment_now(moment: Moment) -> datetime | None:
    """Return the time that a setting stands for, in UTC; None if it is unknown.

    Raises InvalidValue if a function returned a time without a zone.
    """
    value = moment() if callable(moment) else moment
    if value is None:
        return None
    if value.utcoffset() is None:
        raise InvalidValue("the returned moment", value, "a datetime with a time zone, or None")
    return value.astimezone(UTC)
