"""Secrets that the tools file gives to one server, and their removal from what the server writes."""

from collections.abc import Mapping

from mcp_types import CallToolResult

from lifesign.adapter.tools.tools_file import Upstream
from lifesign.adapter.tools.tools_file_reader import secret_of
from lifesign.domain.credentials.secret import NO_SECRETS, scrubber_of, united


class ServerSecrets:
    """Secrets of one tool server, which may quote them, as in "incorrect API key provided: ..."."""

    def __init__(self, upstream: Upstream, environment: Mapping[str, str]) -> None:
        self._sources = upstream.environment or upstream.headers
        self._environment = environment
        self.scrubber = NO_SECRETS
        """Removes the secrets that were last read. Those that are no valid secret, or too short, remain."""

    def read(self) -> dict[str, str]:
        """Read the secrets, with their prefixes, by variable or header; InvalidValue if one is missing."""
        values = {name: secret_of(source, self._environment) for name, source in self._sources.items()}
        self.scrubber = united(
            scrubber_of(values[name].removeprefix(source.prefix)) for name, source in self._sources.items()
        )
        return values

    def clean_text(self, text: str) -> str:
        """Return a text without the secrets."""
        return self.scrubber.clean_text(text)

    def cleaned(self, result: CallToolResult) -> CallToolResult:
        """Return a result without the secrets; ValueError if they cannot be removed from it."""
        written = result.model_dump_json(by_alias=True, exclude_none=True).encode()
        cleaned = self.scrubber.clean_shown(written)
        return result if cleaned == written else CallToolResult.model_validate_json(cleaned)
