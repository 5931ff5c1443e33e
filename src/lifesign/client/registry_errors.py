"""Errors of requests to a registry, and which answer means which.

Two branches for two remedies: the registry refused (`RegistryRefusal`: change the request), or there was no
usable answer (`RegistryFailure`: try later, or check the registry).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lifesign.errors import LifesignError, NoAnswer

MAX_TEXT_CHARS = 500
"""Maximum length of a registry's own text in an error."""


class RegistryError(LifesignError):
    """Base class of the errors of a `RegistryClient`. For wrong arguments it raises InvalidValue."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str = "",
        details: Mapping[str, Any] = MappingProxyType({}),
        body: Mapping[str, Any] = MappingProxyType({}),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        """Message for people, on one line. It may quote the registry: show it with care."""
        self.status = status
        """Status of the answer; None without one."""
        self.code = code
        """Code for programs, such as `lease_held`; empty if the answer has none."""
        self.details = details
        """Other members of `error.details`."""
        self.body = body
        """The whole answer, if it was a JSON object."""
        self.retry_after_s = retry_after_s
        """Wait before the next request, in seconds from the answer, if the answer requested it."""
        self.may_be_repeat = False
        """Whether an earlier attempt of the same call may have been executed already."""


class RegistryRefusal(RegistryError):
    """The registry refused the request (4xx with a code, and 413 or 429 from any server)."""


class NotAuthorized(RegistryRefusal):
    """401: the request had no key, or an unknown one."""


class NotPermitted(RegistryRefusal):
    """403: the key is valid, but does not permit this request."""


class NotFound(RegistryRefusal):
    """404: the agent, lease, task or other object of the request does not exist."""


class Conflict(RegistryRefusal):
    """409: the current state forbids the request, for example because another agent holds the lease."""

    @property
    def existing_lease(self) -> Mapping[str, Any] | None:
        """The lease that prevents the request; None if there is another reason."""
        lease = self.body.get("existing_lease")
        return lease if isinstance(lease, dict) else None


class Gone(RegistryRefusal):
    """410: the agent is dead or deregistered, or its incarnation has ended. It has to register again."""


class Stale(RegistryRefusal):
    """412: the version (If-Match) or the fencing token is no longer the current one."""

    @property
    def current_version(self) -> int | None:
        """The record's current version, if the registry refused another one; else None."""
        version = self.body.get("current_version")
        return version if type(version) is int else None


class Unprocessable(RegistryRefusal):
    """422: the body or the query is invalid; `details["faults"]` says where."""


class PreconditionRequired(RegistryRefusal):
    """428: the request must name a version (If-Match)."""


class RateLimited(RegistryRefusal):
    """429: too many requests; `retry_after_s` says when to try again."""


class RegistryFailure(RegistryError, NoAnswer):
    """There is no usable answer. Subclasses differ in whether the request may have been executed."""


class Unavailable(RegistryFailure):
    """502, 503 or 504: the registry, or a proxy in front of it, cannot answer now.

    Our registry changes nothing then; of a proxy that cannot be known.
    """


class Unreachable(RegistryFailure):
    """No complete answer arrived, in time or at all."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent
        """Whether the request may have been executed. False: there was not even a connection."""


class InvalidAnswer(RegistryFailure):
    """The answer cannot be that of a registry: 500, a redirect, not JSON, too large, or wrong members.

    Also a 4xx without a code, which a proxy in front of the registry sends.
    """


def is_final(error: RegistryError) -> bool:
    """Return whether the request was refused so that a retry would be refused too."""
    return isinstance(error, RegistryRefusal) and not isinstance(error, RateLimited)


def is_run_over(error: RegistryError) -> bool:
    """Return whether a write of a run was refused because the run or its agent's incarnation has ended."""
    return isinstance(error, Stale | Gone | NotFound)


def may_have_been_executed(error: RegistryError) -> bool:
    """Return whether the registry may have executed the request nevertheless."""
    return error.was_sent if isinstance(error, Unreachable) else isinstance(error, RegistryFailure)


_UNKNOWN_PATH = "not_found"
"""Code of the registry for a path that it does not have, such as `/api/v1/api/v1/agents`."""
_NO_API = "there is no registry API at this URL"
_OF_ANY_SERVER = frozenset({413, 429})
"""Statuses with the same meaning whichever server sends them."""


_CLASSES: Mapping[int, type[RegistryError]] = MappingProxyType(
    {
        401: NotAuthorized,
        403: NotPermitted,
        404: NotFound,
        409: Conflict,
        410: Gone,
        412: Stale,
        422: Unprocessable,
        428: PreconditionRequired,
        429: RateLimited,
        502: Unavailable,
        503: Unavailable,
        504: Unavailable,
    }
)


def error_of(
    status: int, body: object, *, reason: str = "", retry_after_s: float | None = None
) -> RegistryError:
    """Return the error for a status other than 2xx; `body` is its parsed content, or None.

    A 4xx without a code comes from another server, such as a proxy, which may have forwarded the request. It
    is no refusal: a 404 means a wrong URL, not a missing agent.
    """
    members = body if isinstance(body, dict) else {}
    columns = members.get("error")
    columns = columns if isinstance(columns, dict) else {}
    details = columns.get("details")
    message = _text(columns.get("message")) or _text(members.get("message")) or reason
    code = _text(columns.get("code"))
    found = _CLASSES.get(status, RegistryRefusal if 400 <= status < 500 else InvalidAnswer)
    if status == 404 and code == _UNKNOWN_PATH:
        found, message = InvalidAnswer, _NO_API
    elif 400 <= status < 500 and status not in _OF_ANY_SERVER and not code:
        found = InvalidAnswer
        message = (
            _NO_API
            if status in {404, 410}
            else f"{message or 'refused'} (not by the registry: the answer has no error code)"
        )
    elif 300 <= status < 400:
        message = "redirected; not followed, because the key must stay with this server"
    error = found(
        f"HTTP {status}: {message}" if message else f"HTTP {status}",
        status=status,
        code=code,
        details=details if isinstance(details, dict) else {},
        body=members,
        retry_after_s=retry_after_s,
    )
    error.hint = _text(columns.get("hint"))
    return error


def _text(value: object) -> str:
    return " ".join(value.split())[:MAX_TEXT_CHARS] if isinstance(value, str) else ""
