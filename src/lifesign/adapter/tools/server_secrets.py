"""Secrets that the tools file gives to one server, and their removal from what the server writes."""

from collections.abc import Mapping
from typing import Any

from mcp_types import CallToolResult
from pydantic_core import from_json, to_json

from lifesign.adapter.tools.tools_file import Upstream
from lifesign.adapter.tools.tools_file_reader import secret_of
from lifesign.domain.credentials.secret import NO_SECRETS, Scrubber, scrubber_of, secrets_in_header, united


class ServerSecrets:
    """Secrets of one tool server, which may quote them, as in "incorrect API key provided: ..."."""

    def __init__(self, upstream: Upstream, environment: Mapping[str, str]) -> None:
        self._headers = upstream.headers
        self._sources = upstream.environment or upstream.headers
        self._environment = environment
        self.scrubber = NO_SECRETS
        """Removes the secrets that were last read, and the different ones before them, which a running call
        may have sent. Those that are no valid secret, or too short, remain.
        """
        self._values: dict[str, str] = {}
        self._former: dict[str, str] = {}

    def read(self) -> dict[str, str]:
        """Read the secrets, with their prefixes, by variable or header; InvalidValue if one is missing."""
        values = {name: secret_of(source, self._environment) for name, source in self._sources.items()}
        if values != self._values:
            self._former, self._values = self._values, values
        self.scrubber = united(
            scrubber_of(read[name].removeprefix(source.prefix), *self._parts(read[name]))
            for read in (self._values, self._former)
            for name, source in self._sources.items()
            if name in read
        )
        return values

    def _parts(self, value: str) -> list[str]:
        """Return the parts of a header that a server may quote alone, such as the token after `Bearer`."""
        return secrets_in_header(value) if self._sources is self._headers else []

    def clean_text(self, text: str) -> str:
        """Return a text without the secrets."""
        return self.scrubber.clean_text(text)

    def cleaned(self, result: CallToolResult, arguments: Mapping[str, Any]) -> CallToolResult:
        """Return a result of a call with these arguments without the secrets.

        ValueError if they cannot be removed from it.
        """
        written = result.model_dump_json(by_alias=True, exclude_none=True).encode()
        cleaned = self._cleaned(written, arguments)
        return result if cleaned == written else CallToolResult.model_validate_json(cleaned)

    def cleaned_words(self, words: str, arguments: Mapping[str, Any]) -> str:
        """Return the text of a refusal of a call with these arguments without the secrets.

        ValueError if they cannot be removed from it. The text must be complete: a text that was cut may end
        within a secret.
        """
        written = to_json(words)
        cleaned = self._cleaned(written, arguments)
        return words if cleaned == written else str(from_json(cleaned))

    def _cleaned(self, written: bytes, arguments: Mapping[str, Any]) -> bytes:
        """Return an answer, as JSON, without the secrets.

        A secret that the arguments contain stays. The agent has guessed it, and a server that quotes the
        arguments would otherwise show which guess is right. The result does not depend on the beginning of a
        secret, nor does the time.
        """
        if not self.scrubber:
            return written
        given = to_json(arguments)
        is_quoted, is_guessed = self.scrubber.is_shown_in(written), self.scrubber.is_shown_in(given)
        if is_quoted is None or is_guessed is None:
            raise ValueError("a text has too many HTML entities to be searched")
        if not is_quoted:
            return written
        if not is_guessed:
            return self.scrubber.clean_shown(written)
        others = [secret for secret in self.scrubber.secrets if not Scrubber([secret]).is_shown_in(given)]
        return Scrubber(others).clean_shown(written) if others else written
