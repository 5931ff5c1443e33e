"""What did one probe see?"""

from enum import StrEnum


class ResultClass(StrEnum):
    """How one request for a card or a health document ended, seen from outside.

    Only `ok` says something about the agent's health, and then it is the document that says it:
    a failed request means unknown, not unhealthy (draft, appendix A).
    """

    OK = "ok"
    """It was read, and it is what was expected."""
    GATED = "gated"
    """401, 402, 403 or 407: somebody is there and asks for credentials or money first."""
    NOT_AN_AGENT = "not_an_agent"
    """404, 410, a page for people, an empty answer, or JSON of another kind."""
    INVALID_DOCUMENT = "invalid_document"
    """It was meant as what was expected, and breaks its rules."""
    STALE_DOCUMENT = "stale_document"
    """A valid health document, but too old to say how the agent is now, or from the future."""
    REFUSED = "refused"
    """No connection: the port is closed, or no way leads there."""
    TIMEOUT = "timeout"
    """Not finished before the deadline."""
    DNS_FAILURE = "dns_failure"
    """The host name has no address."""
    TLS_FAILURE = "tls_failure"
    """No trustworthy connection: an invalid certificate, or a failed handshake."""
    HTTP_ERROR = "http_error"
    """5xx, any other status that is no answer, or something that is not HTTP at all."""
    TOO_LARGE = "too_large"
    """The body or the header exceeds what we are willing to read."""
    REDIRECT_REFUSED = "redirect_refused"
    """It leads to where we do not follow: another origin, plain http, or in circles."""
    RATE_LIMITED = "rate_limited"
    """429: asked too often, by us or by others."""
