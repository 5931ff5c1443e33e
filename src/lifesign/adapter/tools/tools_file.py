"""Tools file: servers, their tools for an agent, and the prices.

The names of the attributes are the keys of the file, which `tools_file_reader` reads and from which
`schemas/tools.schema.json` is generated. Durations are in seconds; paths are relative to the file's
directory. Secrets are never in the file: they come from a separate file, a variable or systemd.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticCustomError
from yarl import URL

from lifesign.domain.credentials.secret_place import ENV_PATTERN, SYSTEMD_PATTERN, SecretPlace
from lifesign.domain.targets.target import is_in_the_clear
from lifesign.domain.tasks.budget import MAX_USD, RequestedAmount, Tokens, Usd

MAX_UPSTREAMS: Final = 32
MAX_TOOLS: Final = 500
"""Maximum of one server."""
MAX_WORDS: Final = 200
"""Maximum number of words in a command."""
MAX_SECRETS: Final = 64
"""Maximum of one server."""
MAX_CALL_SECONDS: Final = 3_600
MAX_START_SECONDS: Final = 600
MAX_CALLS_AT_ONCE: Final = 256
MIN_ANSWER_BYTES: Final = 1_024
MAX_ANSWER_BYTES: Final = 16 * 1_048_576

EVERYBODYS: Final = frozenset({"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "USER"})
"""Variables that every server process gets. They contain no secret."""

NAME_PATTERN: Final = "^[a-z0-9][a-z0-9_-]{0,31}$"
TOOL_PATTERN: Final = "^[A-Za-z0-9_./-]{1,128}$"
PREFIX_PATTERN: Final = "^[A-Za-z0-9_.-]{0,32}$"
HEADER_PATTERN: Final = "^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$"
META_PATTERN: Final = "^[A-Za-z0-9._/-]{1,128}$"
LINE_PATTERN: Final = "^[ -~]{0,64}$"

FORMS: Final[Mapping[str, str]] = MappingProxyType({
    NAME_PATTERN: "1 to 32 lower-case letters, digits and _ -, the first a letter or a digit",
    TOOL_PATTERN: "the name of a tool: 1 to 128 letters, digits and _ . / -",
    PREFIX_PATTERN: "up to 32 letters, digits and _ . -",
    ENV_PATTERN: "the name of an environment variable",
    SYSTEMD_PATTERN: "the name of a systemd credential",
    HEADER_PATTERN: "the name of a header",
    META_PATTERN: "a key of _meta: 1 to 128 letters, digits and . _ / -",
    LINE_PATTERN: "up to 64 visible ASCII characters and spaces",
})  # fmt: skip
"""Description of each pattern."""


def _check_word(value: str) -> str:
    if not value or "\0" in value:
        raise PydanticCustomError("word", "expected text that is not empty and has no NUL character")
    return value


def _check_url(value: str) -> str:
    try:
        url = URL(value)
    except ValueError:
        url = URL()
    if url.scheme not in {"http", "https"} or not url.host or url.user or url.password or url.fragment:
        raise PydanticCustomError(
            "url", "expected an absolute http(s) URL without user, password and fragment"
        )
    return value


def _refuse_text(value: Any) -> Any:
    """Say of a text that it is one, unless the number that it spells is too large as well."""
    if not isinstance(value, str):
        return value
    try:
        is_too_large = float(value) > MAX_USD
    except ValueError:
        is_too_large = False
    if is_too_large:
        # YAML reads 1e300, without a point, as text.
        raise PydanticCustomError("large", "expected at most {most}", {"most": MAX_USD})
    raise PydanticCustomError("text", "expected a number, not text: write it without quotes")


UsdPrice = Annotated[Usd, BeforeValidator(_refuse_text)]
TokenPrice = Annotated[Tokens, BeforeValidator(_refuse_text)]
UpstreamName = Annotated[str, Field(pattern=NAME_PATTERN)]
ToolName = Annotated[str, Field(pattern=TOOL_PATTERN)]
VariableName = Annotated[str, Field(pattern=ENV_PATTERN)]
HeaderName = Annotated[str, Field(pattern=HEADER_PATTERN)]
Word = Annotated[str, StringConstraints(max_length=4_096), AfterValidator(_check_word)]
FilePath = Annotated[Path, Field(strict=False)]
Switch = Annotated[bool, Field(strict=True)]


class _FileMapping(BaseModel):
    """A mapping of the file: unknown members are refused, so that a misspelt price is not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Most(_FileMapping):
    """Maximum cost of a tool call."""

    tokens: TokenPrice = 0
    """Tokens of a model."""
    usd: UsdPrice = 0
    """US dollars, with at most six decimals."""


class Price(_FileMapping):
    """Price of one call: fixed, or reported by the server afterwards."""

    usd_per_call: UsdPrice | None = None
    """Price of one call in US dollars; 0 if it is free."""
    tokens_per_call: TokenPrice | None = None
    """Price of one call in tokens; 0 if it is free."""
    cost_in: Annotated[str, Field(pattern=META_PATTERN)] | None = None
    """Key of the result's `_meta` with the actual cost of the call: {tokens, usd}."""
    at_most: Most | None = None
    """With `cost_in`: amount that is reserved before each call."""

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        is_fixed = self.usd_per_call is not None or self.tokens_per_call is not None
        if is_fixed == (self.cost_in is not None):
            raise PydanticCustomError(
                "price",
                "expected a price: usd_per_call, tokens_per_call or both; or else cost_in with at_most",
            )
        if (self.cost_in is None) != (self.at_most is None):
            raise PydanticCustomError("price", "expected cost_in and at_most together")
        if self.at_most is not None and not (self.at_most.tokens or self.at_most.usd):
            raise PydanticCustomError("price", "expected at_most with tokens, usd or both above 0")
        return self

    def most(self) -> RequestedAmount:
        """Return the maximum cost of a call. This amount is reserved before the call."""
        if self.at_most is not None:
            return RequestedAmount(tokens=self.at_most.tokens, usd=self.at_most.usd)
        return RequestedAmount(tokens=self.tokens_per_call or 0, usd=self.usd_per_call or 0)


class ToolSecret(SecretPlace):
    """Where a secret is stored, and the text to write before it, such as "Bearer "."""

    prefix: Annotated[str, Field(pattern=LINE_PATTERN)] = ""
    """Text before the value, such as "Bearer "."""


class Upstream(_FileMapping):
    """One MCP server of a tools file: started by a command, or called at a URL."""

    command: Annotated[tuple[Word, ...], Field(min_length=1, max_length=MAX_WORDS)] | None = None
    """Command of a server that speaks MCP over its standard input and output, with its arguments."""
    directory: FilePath | None = None
    """Working directory of the command; default: the directory of this file."""
    environment: Annotated[dict[VariableName, ToolSecret], Field(max_length=MAX_SECRETS)] = {}
    """Environment variables of the command, besides HOME, LOGNAME, PATH, SHELL, TERM and USER."""
    url: Annotated[str, StringConstraints(max_length=2_048), AfterValidator(_check_url)] | None = None
    """URL of a server that speaks streamable HTTP; https, or http on this machine."""
    headers: Annotated[dict[HeaderName, ToolSecret], Field(max_length=MAX_SECRETS)] = {}
    """Headers that are sent with every request to the URL."""
    tools: Annotated[dict[ToolName, Price], Field(max_length=MAX_TOOLS)] = {}
    """Offered tools, by their names on the server."""
    offer_all: Switch = False
    """True if tools that `tools` does not name are offered too, at `price`."""
    price: Price | None = None
    """With `offer_all`: price of a call of the tools that `tools` does not name."""
    prefix: Annotated[str, Field(pattern=PREFIX_PATTERN)] = ""
    """Text before the names under which agents see the server's tools."""

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise PydanticCustomError("upstream", "expected exactly one of command and url")
        if self.url is not None and (self.environment or self.directory is not None):
            raise PydanticCustomError(
                "upstream", "expected environment and directory only with command, not with url"
            )
        if self.command is not None and self.headers:
            raise PydanticCustomError("upstream", "expected headers only with url, not with command")
        if self.url is not None and is_in_the_clear(str(URL(self.url).origin())):
            raise PydanticCustomError(
                "upstream", "expected an https URL: plain http is allowed only to this machine"
            )
        if self.offer_all != (self.price is not None):
            raise PydanticCustomError("upstream", "expected offer_all and price together")
        if not self.tools and not self.offer_all:
            raise PydanticCustomError(
                "upstream", "expected tools, or offer_all with a price: otherwise no tool is offered"
            )
        return self


class CallLimits(_FileMapping):
    """Limits of the tool calls of one run."""

    calls_at_once: Annotated[int, Field(strict=True, ge=1, le=MAX_CALLS_AT_ONCE)] = 16
    """Maximum number of concurrent calls; the server refuses further calls until one ends."""
    call_seconds: Annotated[float, Field(strict=True, ge=1, le=MAX_CALL_SECONDS)] = 300
    """Time limit of a call in seconds. A call that takes longer fails."""
    answer_bytes: Annotated[int, Field(strict=True, ge=MIN_ANSWER_BYTES, le=MAX_ANSWER_BYTES)] = 1_048_576
    """Maximum size of an answer, as JSON."""
    start_seconds: Annotated[float, Field(strict=True, ge=1, le=MAX_START_SECONDS)] = 30
    """Time limit for a server to start and to list its tools, in seconds."""


class Upstreams(_FileMapping):
    """Content of a tools file: the MCP servers whose tools an agent may call, and limits."""

    limits: CallLimits = CallLimits()
    """Limits of the tool calls of one run."""
    upstreams: Annotated[dict[UpstreamName, Upstream], Field(max_length=MAX_UPSTREAMS)]
    """MCP servers by name."""

    def named(self) -> Iterator[tuple[str, str]]:
        """Yield each tool that the file lists, in its order: the server's name, and the tool's name there."""
        for name, upstream in self.upstreams.items():
            for tool in upstream.tools:
                yield name, tool

    def variables(self) -> set[str]:
        """Return the names of the environment variables that contain the servers' secrets.

        The agent does not get them.
        """
        sources = (
            source
            for upstream in self.upstreams.values()
            for source in (*upstream.environment.values(), *upstream.headers.values())
        )
        return {source.env for source in sources if source.env is not None} - EVERYBODYS

    def price_of(self, upstream: str, tool: str) -> Price | None:
        """Return the price of a tool; None if it is not offered."""
        settings = self.upstreams[upstream]
        return settings.tools.get(tool, settings.price)

    def names_for(self, upstream: str, tool: str) -> tuple[str, str]:
        """Return two names for a tool: the one to offer it by, and another one if that is taken."""
        return f"{self.upstreams[upstream].prefix}{tool}", f"{upstream}_{tool}"


NO_UPSTREAMS: Final = Upstreams(upstreams={})
