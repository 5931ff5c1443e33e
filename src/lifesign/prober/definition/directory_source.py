"""The directories of a probe definition."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from lifesign.domain.credentials.secret_place import FileName
from lifesign.domain.targets.target import TargetKind, host_of, is_in_the_clear
from lifesign.prober.definition.layer_settings import DefinitionMapping
from lifesign.prober.definition.values import MAX_SPAN_SECONDS, Format, Name, Switch, Target, name_from


class DirectorySource(DefinitionMapping):
    """A directory (list of agents) in a definition, at a URL or in a file."""

    url: Target | None = None
    """URL of the directory. For a domain, the prober tries the well-known places of catalogs."""
    file: FileName | None = None
    """File of the directory, relative to the definition."""
    name: Name | None = None
    """Name in results and reports. Default: its host or file name."""
    format: Format = "auto"
    """Format of the directory; `auto` recognises it by its content."""
    refresh_seconds: Annotated[float, Field(strict=True, ge=60, le=MAX_SPAN_SECONDS)] = 86_400
    """Interval at which the directory is read again."""
    key_file: FileName | None = None
    """File with the API key of the directory. The definition itself never contains a key."""
    allow_shrink: Switch = False
    """Whether the directory may lose more than half of its entries at once without confirmation."""
    kinds: Annotated[tuple[TargetKind, ...], Field(min_length=1, max_length=2)] = (
        TargetKind.A2A,
        TargetKind.MCP,
    )
    """Kinds of entries that become targets: `a2a`, `mcp` or both.

    An entry whose kind the directory does not state counts as `a2a`, or as `mcp` if only `mcp` is named.
    """

    @model_validator(mode="after")
    def _require_one_source(self) -> Self:
        if (self.url is None) == (self.file is None):
            raise PydanticCustomError("url_or_file", "expected exactly one of url and file")
        if self.key_file is not None and self.url is None:
            raise PydanticCustomError(
                "key_for_a_file", "expected key_file only with url: a file needs no key"
            )
        if self.key_file is not None and self.url is not None and is_in_the_clear(self.url):
            raise PydanticCustomError("key_in_the_clear", "expected url with https: it gets the key")
        return self

    @property
    def label(self) -> str:
        """Name of the directory in results: the configured name, else the host or the file name."""
        if self.name is not None:
            return self.name
        return name_from(host_of(self.url) if self.url is not None else Path(self.file or "").name)
