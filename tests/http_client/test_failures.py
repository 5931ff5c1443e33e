"""Classification of failed requests."""

import asyncio
import errno
import ssl
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import BadHttpMessage, BadStatusLine, ContentLengthError, LineTooLong
from yarl import URL

from lifesign.domain.observation.results import ResultClass
from lifesign.http_client.failures import (
    TooManyBytes,
    certificate_alert,
    classify_failure,
    is_certificate_page,
)

PLACE = URL("https://agent.example/a2a")
UNDECODABLE = BadHttpMessage("Can not decode content-encoding: brotli (br)")
CANNOT_CONNECT = OSError(errno.ECONNREFUSED, "refused")


@pytest.mark.parametrize(
    ("error", "result", "part"),
    [
        (TimeoutError(), ResultClass.TIMEOUT, "agent.example:443"),
        (TooManyBytes(), ResultClass.TOO_LARGE, "body"),
        (TooManyBytes(is_in_header=True), ResultClass.TOO_LARGE, "header"),
        (aiohttp.ClientConnectorDNSError(Mock(), CANNOT_CONNECT), ResultClass.DNS_FAILURE, "'agent.example'"),
        (UnicodeError(), ResultClass.DNS_FAILURE, "'agent.example'"),
        (ssl.SSLError(1, "bad"), ResultClass.TLS_FAILURE, "bad"),
        (aiohttp.ClientConnectorError(Mock(), CANNOT_CONNECT), ResultClass.REFUSED, "Connection refused"),
        (LineTooLong("x", 9), ResultClass.TOO_LARGE, "32768"),
        (UNDECODABLE, ResultClass.HTTP_ERROR, "'br'"),
        (aiohttp.ClientPayloadError("secret"), ResultClass.HTTP_ERROR, "ends early"),
        (BadStatusLine("secret"), ResultClass.HTTP_ERROR, "status line"),
        (BadHttpMessage("secret"), ResultClass.HTTP_ERROR, "malformed"),
        (BadHttpMessage("Invalid token:\n\n  b'secret'\n    ^"), ResultClass.HTTP_ERROR, ": Invalid token"),
        (ConnectionResetError(errno.ECONNRESET, "x"), ResultClass.HTTP_ERROR, "reset by peer"),
        (aiohttp.ServerDisconnectedError("secret"), ResultClass.HTTP_ERROR, "closed it"),
        (aiohttp.ClientError("secret"), ResultClass.HTTP_ERROR, "ClientError"),
        (ValueError("secret"), ResultClass.HTTP_ERROR, "ValueError"),
    ],
)
def test_each_failure_has_a_class_and_a_reason_in_ascii(
    error: BaseException, result: ResultClass, part: str
) -> None:
    found, reason = classify_failure(PLACE, error)
    assert found is result
    assert part in reason
    assert reason.isascii()
    assert "secret" not in reason


def test_length_of_an_incomplete_body_is_in_the_reason() -> None:
    error = aiohttp.ClientPayloadError()
    error.__cause__ = ContentLengthError("received 5 of 9 bytes")
    assert "5 of 9" in classify_failure(PLACE, error)[1]


HEAD = b"HTTP/1.1 401 Unauthorized\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (HEAD, b" is no valid token\r\n\r\n"),
        (HEAD + b"X-Debug: ", b"\rx\r\n\r\n"),
        (HEAD + b"X-Debug: ", b"\0x\r\n\r\n"),
        (HEAD + b"Content-Length: ", b"\r\n\r\n"),
        (b"HTTP/1.1 ", b"\r\n\r\n"),
        (b"HTTP/1.1 200 ", b"\rx\r\n\r\n"),
        (b"", b"\r\n\r\n"),
        (CHUNKED, b"\r\n\r\n"),
        (CHUNKED + b"5;", b"\0\r\n\r\n"),
        (CHUNKED + b"1\r\na", b"\r\n\r\n"),
        (CHUNKED + b"0\r\n", b" x\r\n\r\n"),
    ],
)
async def test_no_part_of_a_malformed_line_is_in_the_reason(before: bytes, after: bytes) -> None:
    handler = ResponseHandler(asyncio.get_running_loop())
    handler.connection_made(Mock(spec=asyncio.Transport))
    handler.set_response_params(read_until_eof=True)
    # The segment ends within the secret.
    handler.data_received(before + b"K")
    handler.data_received(b"ey1SECRET" + after)
    error = handler.exception()
    assert error is not None
    assert "SECRET" not in classify_failure(PLACE, error)[1]


def alert(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, "canary")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("reason", "has_sent_one", "text"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", False, "certificate required"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", True, "bad certificate"),
        ("TLSV1_ALERT_UNKNOWN_CA", True, "unknown ca"),
        ("TLSV1_ALERT_UNKNOWN_CA", False, None),
        ("WRONG_VERSION_NUMBER", True, None),
    ],
)
def test_alert_about_the_client_certificate_is_named(
    reason: str, *, has_sent_one: bool, text: str | None
) -> None:
    wrapped = aiohttp.ClientError()
    wrapped.__cause__ = alert(reason)
    for error in (alert(reason), wrapped):
        found = certificate_alert(error, has_sent_one=has_sent_one)
        assert (found and found.removeprefix("TLS alert ")) == text
    assert certificate_alert(ConnectionResetError(), has_sent_one=has_sent_one) is None


def test_page_of_nginx_without_a_certificate_is_recognised_at_its_beginning() -> None:
    title = b"<html><head><title>400 No required SSL certificate was sent</title>"
    assert is_certificate_page(title)
    assert not is_certificate_page(b" " * 256 + title)
    assert not is_certificate_page(b"<html><title>400 Bad Request</title>")
