"""Versions of published interfaces (`/api/v1/targets/{target_id}/interface-versions`)."""

from typing import Annotated

from pydantic import BaseModel, Field

from lifesign.domain.health.document import Time
from lifesign.domain.models.base import Body
from lifesign.domain.published_interface.comparison import ChangeKind
from lifesign.domain.published_interface.published import InterfaceKind
from lifesign.domain.published_interface.version_history import MAX_VERSIONS

MAX_VERSION_NUMBER = 2**31 - 1

VersionNumber = Annotated[int, Field(ge=1, le=MAX_VERSION_NUMBER)]


class ListedVersion(BaseModel):
    """One version of a target's published interface."""

    version: int
    """Number of the version, counted from 1."""
    seen_at: Time
    """Time of the probe that read it."""
    until: Time | None = None
    """Time of the next version; absent for the newest."""
    kind: InterfaceKind
    digest: str
    """SHA-256 of the normalised interface."""
    changes: int | None = None
    """Number of differences from the previous version; absent if that version is not kept."""
    breaking: bool | None = None
    """Whether any of the differences breaks callers; absent if the previous version is not kept."""


class InterfaceVersions(BaseModel):
    """The stored versions of a target's published interface."""

    target_id: str
    is_unstable: bool
    """Whether each of the latest readings found another interface."""
    versions: Annotated[list[ListedVersion], Field(max_length=MAX_VERSIONS)]
    """Kept versions, the newest first."""


class ListedInterfaceChange(BaseModel):
    """One difference between two versions of an interface."""

    pointer: str
    """JSON pointer into the normalised interface, such as `/skills/translate`."""
    change: ChangeKind
    breaking: bool
    """Whether the difference breaks callers."""


class InterfaceComparison(BaseModel):
    """Differences between two versions of a target's published interface."""

    target_id: str
    previous_version: int
    version: int
    breaking: bool
    """Whether any difference breaks callers, including omitted ones."""
    changes: list[ListedInterfaceChange]
    """Differences by pointer, at most 256."""
    omitted: int
    """Number of further differences."""


class VersionPair(Body):
    """Query of a comparison: which two versions of an interface."""

    previous_version: VersionNumber | None = None
    """Older version; without it, the one before `version`."""
    version: VersionNumber | None = None
    """Newer version; without it, the newest."""
