"""Failures of requests, with the result class and reason of each."""

import os
import re
import ssl
from typing import Final

import aiohttp
from aiohttp.http_exceptions import ContentEncodingError, ContentLengthError, HttpProcessingError
from yarl import URL

from lifesign.domain.observation.results import ResultClass
from lifesign.http_client.address_guard import PrivateAddressRefused
from lifesign.http_client.byte_counter import MAX_HEADER_BYTES, MAX_SPARE_BYTES
from lifesign.http_client.redirects import MAX_SHOWN_CHARS

MAX_HEADER_LINE_BYTES: Final = MAX_HEADER_BYTES // 2
"""Maximum length of the status line, and of each header field.

aiohttp's own limit of 8190 bytes refuses answers that curl and httpx read.
"""
MAX_HEADERS: Final = 1_000
X_GZIP: Final = "x-gzip"
"""The alias of gzip (RFC 9110 8.4.1.3), which aiohttp leaves packed."""
UNPACKED: Final = frozenset({"gzip", X_GZIP, "deflate", "br", "zstd"})
"""Encodings that are decoded, or that aiohttp reports as unsupported without a library."""

# Exceptions of a GET that the peer or the network causes. ValueError: host names that no resolver accepts
# (UnicodeError), and headers that are not text.
FAILURES: Final = (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError, ValueError)
_WANTS_CERTIFICATE: Final = frozenset({"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_BAD_CERTIFICATE"})
"""TLS alerts to a client without a certificate, as OpenSSL names them."""
_REFUSES_CERTIFICATE: Final = _WANTS_CERTIFICATE | {
    "SSLV3_ALERT_CERTIFICATE_EXPIRED", "SSLV3_ALERT_CERTIFICATE_REVOKED", "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE", "TLSV1_ALERT_ACCESS_DENIED", "TLSV1_ALERT_UNKNOWN_CA",
}  # fmt: skip
"""TLS alerts to a client whose certificate is not accepted. Others may have any cause."""
MAX_ERROR_PAGE_BYTES: Final = 256
"""Beginning of a page that has its title."""
# nginx accepts the handshake, and answers each request with 400 (ngx_http_special_response.c).
_CERTIFICATE_TITLES: Final = (
    b"<title>400 No required SSL certificate was sent</title>",
    b"<title>400 The SSL certificate error</title>",
)
_HEADERS_TITLE: Final = b"<title>400 Request Header Or Cookie Too Large</title>"
# aiohttp has no separate class for these.
_NO_STATUS_LINE = "Bad status line"
_NO_LIBRARY = re.compile(r"Can not decode content-encoding: \w+ \((br|zstd)\)")
_REQUESTED_CODINGS = "only gzip and deflate were accepted"
# A fixed text of the parser, which quotes the answer below it.
_RULE = re.compile(r"""(?:Bad status line:\n {2})?(?P<rule>[A-Z][\w'` /-]{,100}):\n\n {2}b['"]""", re.ASCII)
_UNQUOTING: Final = (ContentLengthError, ContentEncodingError)
"""Errors of aiohttp whose texts have only numbers and names of encodings from the answer."""
_HEADER_TOO_LARGE = ("Got more than", "Too many headers")


class TooManyBytes(aiohttp.ClientError):
    """An answer had more bytes than its limit, so that the connection was ended."""

    result = ResultClass.TOO_LARGE

    def __init__(self, *, is_in_header: bool = False) -> None:
        most = MAX_HEADER_BYTES if is_in_header else MAX_SPARE_BYTES
        what = "of header" if is_in_header else "besides the body"
        super().__init__(f"more than {most} bytes {what} arrived")


class ListenerChanged(aiohttp.ClientError):
    """Another user than before listens on a port of loopback. Nothing was sent."""

    result = ResultClass.REFUSED


def too_large(max_bytes: int) -> tuple[ResultClass, str]:
    """Return the failure of a request whose answer was larger than allowed."""
    return ResultClass.TOO_LARGE, f"the body has more than {max_bytes} bytes"


def undecodable(coding: str) -> str:
    """Return the failure of a request whose answer has an encoding that was not requested."""
    given = _in_ascii(coding)
    return f"the body cannot be decompressed: its Content-Encoding is {given!r}, and {_REQUESTED_CODINGS}"


def classify_failure(url: URL, error: BaseException) -> tuple[ResultClass, str]:
    """Return the result of a request that failed with this exception."""
    place = f"{url.raw_host}:{url.port}"
    cause = error.__cause__
    match error:
        case TimeoutError():
            found = ResultClass.TIMEOUT, f"no complete answer from {place} in time"
        case PrivateAddressRefused() | TooManyBytes() | ListenerChanged():
            found = error.result, str(error)
        case aiohttp.ClientConnectorDNSError() | UnicodeError():
            found = ResultClass.DNS_FAILURE, f"the host name {url.raw_host!a} has no address"
        case aiohttp.ClientSSLError() | aiohttp.ServerFingerprintMismatch() | ssl.SSLError():
            found = (
                ResultClass.TLS_FAILURE,
                f"no trusted TLS connection to {place}: {error_text(cause or error)}",
            )
        case aiohttp.ClientConnectorError():
            found = ResultClass.REFUSED, f"no connection to {place}: {error_text(error)}"
        case aiohttp.ClientResponseError() | HttpProcessingError() if error.message.startswith(
            _HEADER_TOO_LARGE
        ):
            limits = f"{MAX_HEADER_LINE_BYTES} bytes or {MAX_HEADERS} fields"
            found = ResultClass.TOO_LARGE, f"the header exceeds {limits}"
        case aiohttp.ClientResponseError() | HttpProcessingError() if (
            coding := _NO_LIBRARY.match(error.message)
        ) is not None:
            found = ResultClass.HTTP_ERROR, undecodable(coding[1])
        case aiohttp.ClientPayloadError():
            found = ResultClass.HTTP_ERROR, _damage(cause)
        case aiohttp.ClientResponseError() | HttpProcessingError():
            found = ResultClass.HTTP_ERROR, f"not an HTTP answer: {_breach(error.message)}"
        case _:
            found = ResultClass.HTTP_ERROR, f"the connection broke: {error_text(error)}"
    return found


def _breach(message: str) -> str:
    """Return which rule of HTTP an answer broke.

    The line is not quoted. aiohttp's text has only what arrived last of it, which may begin within a secret.
    """
    is_start = message.startswith(_NO_STATUS_LINE)
    what = "it does not begin with a status line" if is_start else "its header is malformed"
    broken = _RULE.match(message)
    return what if broken is None else f"{what}: {broken['rule']}"


def _damage(cause: BaseException | None) -> str:
    """Return what is wrong with a body, without text that may quote it."""
    what = "the body is damaged or ends early"
    return f"{what}: {cause.message}" if isinstance(cause, _UNQUOTING) else what


def certificate_alert(error: BaseException, *, has_sent_one: bool) -> str | None:
    """Return the TLS alert with which a server refused the client's certificate; None for other errors."""
    # The alert of TLS 1.3 comes after the handshake, and aiohttp wraps it.
    for each in (error, error.__cause__):
        alert = each.reason if isinstance(each, ssl.SSLError) else None
        if alert in (_REFUSES_CERTIFICATE if has_sent_one else _WANTS_CERTIFICATE):
            return f"TLS alert {alert.partition('_ALERT_')[2].lower().replace('_', ' ')}"
    return None


def is_certificate_page(body: bytes) -> bool:
    """Return whether a body is nginx's error page for clients without an accepted certificate."""
    return any(title in body[:MAX_ERROR_PAGE_BYTES] for title in _CERTIFICATE_TITLES)


def is_header_page(body: bytes) -> bool:
    """Return whether a body is nginx's error page for requests whose headers are too large."""
    return _HEADERS_TITLE in body[:MAX_ERROR_PAGE_BYTES]


def error_text(error: BaseException) -> str:
    """Return an exception as one short line of ASCII, without text that may quote the peer."""
    text = ""
    # OpenSSL numbers its errors in its own way.
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError):
        text = os.strerror(error.errno)
    elif isinstance(error, OSError):
        text = str(error)
    elif isinstance(error, aiohttp.ServerDisconnectedError):
        text = "the server closed it"
    return _in_ascii(text) or type(error).__name__


def _in_ascii(text: str) -> str:
    return " ".join(text.split())[: 2 * MAX_SHOWN_CHARS].encode("ascii", "backslashreplace").decode()
