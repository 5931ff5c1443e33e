"""Status and header of an answer, before its body is read."""

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol, TypedDict

from yarl import URL

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.credentials.challenge import MAX_FIELD_CHARS, MAX_FIELDS
from lifesign.domain.credentials.request_scope import REJECTED
from lifesign.domain.credentials.secret import Scrubber
from lifesign.domain.observation.results import ResultClass
from lifesign.http_client.failures import UNPACKED, undecodable
from lifesign.http_client.headers import (
    UTF_8,
    max_age_seconds,
    media_type,
    retry_after_seconds,
    status_links,
    text_codec,
    whole_number,
)
from lifesign.http_client.redirects import MAX_SHOWN_CHARS

if TYPE_CHECKING:
    from multidict import CIMultiDictProxy

MAX_DATES: Final = 64
"""Number of cached results of date parsing."""


@fast_dataclass(kw_only=True)
class Answer:
    """Result of a request. If there was no answer, only `url`, `result` and `reason` are set."""

    url: URL
    """Final address, after redirects."""
    result: ResultClass
    """`ok` for a body that was read whole; its content is not checked yet."""
    reason: str = ""
    """Fault for people; empty if `result` is `ok`. It may quote the peer, in ASCII."""
    status: int | None = None
    content_type: str = ""
    """Lower case, without parameters."""
    codec: str = UTF_8
    """Python's codec for the text of `body`, by the charset of the content type."""
    body: bytes = b""
    served_at: datetime | None = None
    """Time by the server's clock: `Date`, plus the time in a cache (`Age`)."""
    max_age_seconds: int | None = None
    retry_after_seconds: int | None = None
    status_links: tuple[str, ...] = ()
    """Targets of `Link: rel="status"` (RFC 8631), as sent."""
    mcp_session: str = ""
    """`Mcp-Session-Id`, as sent; empty without one."""
    challenges: tuple[str, ...] = ()
    """`WWW-Authenticate` of a refusal, as sent; see `domain/credentials/challenge.py`."""
    latency_ms: float = 0.0
    """Time from the first request to the last byte, redirects included."""

    @property
    def is_json(self) -> bool:
        """Whether the answer's content type is JSON."""
        return self.content_type == "application/json" or self.content_type.endswith("+json")


class HeadTexts(TypedDict):
    """Texts from an answer's header that may contain a secret which the server sent back."""

    reason: str
    content_type: str
    status_links: tuple[str, ...]
    challenges: tuple[str, ...]


def head_without_secrets(answer: Answer, scrubber: Scrubber) -> HeadTexts:
    """Return the texts from an answer's header, without secrets that the server sent back."""
    return {
        "reason": scrubber.clean_cut(answer.reason),
        "content_type": _cleaned(answer.content_type, MAX_SHOWN_CHARS, scrubber),
        "status_links": tuple(map(scrubber.clean_text, answer.status_links)),
        "challenges": tuple(_cleaned(each, MAX_FIELD_CHARS, scrubber) for each in answer.challenges),
    }


def _cleaned(text: str, most: int, scrubber: Scrubber) -> str:
    """Return a text of at most `most` characters without secrets.

    Only a text that may have been cut is searched for the beginning of a secret: eight characters such as
    `applicat` are in the media type of most answers.
    """
    return scrubber.clean_cut(text) if len(text) >= most else scrubber.clean_text(text)


def in_ms(seconds: float) -> float:
    """Return seconds as milliseconds with three decimals."""
    return round(seconds * 1000.0, 3)


class WithHeader(Protocol):
    """An answer whose header was read."""

    @property
    def status(self) -> int: ...  # noqa: D102 - see its name
    @property
    def headers(self) -> "CIMultiDictProxy[str]": ...  # noqa: D102


def unread_coding(response: WithHeader) -> tuple[ResultClass, str] | None:
    """Return the failure of an answer whose body has an encoding that was not requested; else None.

    One encoding is removed, and no second one: a body that was compressed twice would reach the reader
    compressed.
    """
    fields = response.headers.getall("Content-Encoding", ())
    if not fields:
        return None
    codings = {coding.strip().lower() for field in fields for coding in field.split(",")}
    if codings <= {"", "identity"} or (len(fields) == 1 and fields[0].strip().lower() in UNPACKED):
        return None
    return ResultClass.HTTP_ERROR, undecodable(", ".join(fields))


class Head(TypedDict):
    """What is read from an answer's header, as members of `Answer`."""

    status: int
    content_type: str
    codec: str
    served_at: datetime | None
    max_age_seconds: int | None
    retry_after_seconds: int | None
    status_links: tuple[str, ...]
    mcp_session: str
    challenges: tuple[str, ...]


def read_head(response: WithHeader) -> Head:
    """Read the header of an answer; invalid values count as absent."""
    headers = response.headers
    return {
        "status": response.status,
        "content_type": media_type(headers)[:MAX_SHOWN_CHARS],
        "codec": text_codec(headers),
        "served_at": _served_at(headers.get("Date", ""), headers.get("Age", "")),
        "max_age_seconds": max_age_seconds(headers.getall("Cache-Control", [])),
        "retry_after_seconds": retry_after_seconds(headers.get("Retry-After", ""), datetime.now(UTC)),
        "status_links": status_links(headers.getall("Link", [])),
        "mcp_session": headers.get("Mcp-Session-Id", ""),
        "challenges": _challenges(response),
    }


def _challenges(response: WithHeader) -> tuple[str, ...]:
    """Return the challenges of a refusal; other answers may have some too, and ask for nothing."""
    if response.status not in REJECTED:
        return ()
    fields = response.headers.getall("WWW-Authenticate", [])
    return tuple(field[:MAX_FIELD_CHARS] for field in fields[:MAX_FIELDS])


def _served_at(date: str, age: str) -> datetime | None:
    """Return when an answer was made; None for what is no time."""
    try:
        made_at = _read_date(date) if date else None
        return made_at and made_at + timedelta(seconds=whole_number(age) or 0)
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=MAX_DATES)
def _read_date(text: str) -> datetime:
    """Return a time of HTTP. It is cached, because hundreds of servers send the same second."""
    date = parsedate_to_datetime(text)
    return date.replace(tzinfo=date.tzinfo or UTC)


def classify_status(status: int, method: str = "GET") -> tuple[ResultClass, str]:
    """Return the result of a request by the HTTP status alone. `ok` says nothing about the body."""
    match status:
        case 200 | 203:
            return ResultClass.OK, ""
        case 401 | 402 | 403 | 407:
            result, meaning = ResultClass.GATED, "it requires credentials or payment first"
        case 404 | 410:
            result, meaning = ResultClass.NOT_AN_AGENT, "nothing is served here"
        case 429:
            result, meaning = ResultClass.RATE_LIMITED, "asked too often"
        case _ if 200 <= status < 300:
            result, meaning = ResultClass.NOT_AN_AGENT, "an answer without a document"
        case _:
            result, meaning = ResultClass.HTTP_ERROR, f"not an answer to a plain {method}"
    return result, f"HTTP {status}: {meaning}"
