"""Place of a secret, as a file of settings names it. Such a file never contains a secret itself."""

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

ENV_PATTERN: Final = "^[A-Za-z_][A-Za-z0-9_]{0,127}$"
_USUAL_ENV: Final = re.compile(r"[A-Z]{1,14}[0-9]{0,3}(_[A-Z]{1,14}[0-9]{0,3})*")
SYSTEMD_PATTERN: Final = "^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$"
MAX_FILE_NAME_CHARS: Final = 4096


def env_text(name: str) -> str:
    """Return in words which environment variable a setting names, for the error that it is not set.

    A token may be written there by mistake, so that only a name of the usual form is quoted.
    """
    is_usual = _USUAL_ENV.fullmatch(name) is not None
    return f"the environment variable {name}" if is_usual else "the environment variable that `env` names"


def _check_file_name(value: Any) -> Any:
    if isinstance(value, str) and not (1 <= len(value) <= MAX_FILE_NAME_CHARS and value.isprintable()):
        raise PydanticCustomError("file_name", "expected the path of a file or a directory")
    return value


def _relative_to_settings(value: Path, info: ValidationInfo) -> Path:
    """Resolve a path relative to the file of settings; its directory is the context's `directory`."""
    directory = (info.context or {}).get("directory")
    return value if directory is None else directory / value


FileName = Annotated[Path, BeforeValidator(_check_file_name), AfterValidator(_relative_to_settings)]
"""A path relative to the directory of the file of settings."""


class SecretPlace(BaseModel):
    """Where a secret is stored: in exactly one of a file, a variable, or a systemd credential."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    hides_unknown_keys: ClassVar = True

    file: FileName | None = None
    """File with the secret, relative to this one; only its owner should be able to read and change it."""
    env: Annotated[str, Field(pattern=ENV_PATTERN)] | None = None
    """Environment variable with the secret."""
    systemd: Annotated[str, Field(pattern=SYSTEMD_PATTERN)] | None = None
    """Name of a credential that systemd passes on (LoadCredential=)."""

    @model_validator(mode="after")
    def _require_one_place(self) -> Self:
        if sum(each is not None for each in (self.file, self.env, self.systemd)) != 1:
            raise PydanticCustomError("one_source", "expected exactly one of file, env and systemd")
        return self

    def __str__(self) -> str:
        """Return the place, for people; it contains no secret."""
        if self.file is not None:
            return f"file {self.file}"
        return f"systemd credential {self.systemd}" if self.env is None else f"variable {self.env}"
