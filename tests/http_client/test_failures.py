"""Classification of failed requests."""

import errno
import ssl
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong
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
        (aiohttp.ClientPayloadError("cut"), ResultClass.HTTP_ERROR, "cut"),
        (
            BadHttpMessage("Bad status line:\n\n  b'SSH-2.0'\n    ^"),
            ResultClass.HTTP_ERROR,
            "status line: SSH-2.0",
        ),
        (BadHttpMessage("canary"), ResultClass.HTTP_ERROR, "malformed"),
        (ConnectionResetError(errno.ECONNRESET, "x"), ResultClass.HTTP_ERROR, "reset by peer"),
        (aiohttp.ServerDisconnectedError(), ResultClass.HTTP_ERROR, "disconnected"),
        (aiohttp.ClientError(), ResultClass.HTTP_ERROR, "ClientError"),
        (ValueError("b\xfccher\n  canary"), ResultClass.HTTP_ERROR, r"b\xfccher canary"),
    ],
)
def test_each_failure_has_a_class_and_a_reason_in_ascii(
    error: BaseException, result: ResultClass, part: str
) -> None:
    found, reason = classify_failure(PLACE, error)
    assert found is result
    assert part in reason
    assert reason.isascii()


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
