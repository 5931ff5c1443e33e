import asyncio
import json
from ipaddress import ip_address

import aiohttp
import pytest
from yarl import URL

from lifesign.domain.credentials.challenge import MAX_FIELD_CHARS
from lifesign.domain.credentials.secret import scrubber_of
from lifesign.domain.observation.results import Phases, ResultClass
from lifesign.http_client.redirects import MAX_SHOWN_CHARS
from lifesign.prober.network.connection import HttpConnection
from lifesign.prober.network.connector import Unreached
from lifesign.prober.network.fetched import Fetched, failed, phases_of, scrubbed, unreached


async def test_answer_broken_by_our_timeout_is_a_timeout() -> None:
    line = HttpConnection(asyncio.get_running_loop())
    line.address = ip_address("127.0.0.1")
    broken = aiohttp.ClientPayloadError("not enough data")
    assert failed(URL("http://a.example/"), broken, line, None).result is ResultClass.HTTP_ERROR
    line.is_late = True
    assert failed(URL("http://a.example/"), broken, line, None).result is ResultClass.TIMEOUT


CANARY = "s3cret-canary-0123456789"


def fetched(**members: object) -> Fetched:
    return Fetched(url=URL("http://a.example/"), result=ResultClass.OK, **members)  # type: ignore[arg-type]


def test_secret_is_removed_from_every_text_of_an_answer() -> None:
    answer = fetched(
        body=f"<{CANARY}>".encode(),
        etag=f'"{CANARY}"',
        last_modified=CANARY,
        allow=CANARY,
        challenges=(CANARY,),
    )
    cleaned = scrubbed(answer, scrubber_of(CANARY))
    assert CANARY not in repr(cleaned)
    # They are sent back to the server.
    assert (cleaned.etag, cleaned.last_modified) == (None, None)
    assert scrubbed(fetched(etag='"a"'), scrubber_of(CANARY)).etag == '"a"'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_secret_with_marks_in_it_is_found_in_json_of_each_encoding(encoding: str) -> None:
    body = json.dumps({"name": "\N{LEFT-TO-RIGHT MARK}".join(CANARY)}, ensure_ascii=False).encode(encoding)
    cleaned = scrubbed(fetched(body=body), scrubber_of(CANARY))
    shown = json.loads(cleaned.body)["name"]
    assert CANARY not in shown.replace("\N{LEFT-TO-RIGHT MARK}", "")
    text = "page \u4e00".encode("utf-16-be")
    assert scrubbed(fetched(body=text), scrubber_of(CANARY)).body == text


@pytest.mark.parametrize("secret", ["application-key-77", "ApplicationToken", "bearer-realm-77"])
def test_beginning_of_a_secret_in_a_header_is_no_secret(secret: str) -> None:
    answer = fetched(content_type="application/json", challenges=('Bearer realm="agents"',), body=b"nothing")
    cleaned = scrubbed(answer, scrubber_of(secret))
    assert (cleaned.content_type, cleaned.challenges) == (answer.content_type, answer.challenges)
    assert not cleaned.is_altered


def test_secret_at_the_cut_of_a_header_is_removed() -> None:
    media_type = f"{'x' * (MAX_SHOWN_CHARS - 10)}{CANARY}"[:MAX_SHOWN_CHARS]
    challenge = f"{'x' * (MAX_FIELD_CHARS - 10)}{CANARY}"[:MAX_FIELD_CHARS]
    cleaned = scrubbed(fetched(content_type=media_type, challenges=(challenge,)), scrubber_of(CANARY))
    assert CANARY[:8] not in cleaned.content_type + cleaned.challenges[0]
    assert cleaned.is_altered


def test_body_with_too_many_escapes_is_dropped_and_not_measured() -> None:
    body = ("".join(f"&#{ord(char)};" for char in CANARY) * 1_000).encode()
    cleaned = scrubbed(fetched(body=body), scrubber_of(CANARY))
    assert (cleaned.result, cleaned.body, cleaned.is_body_unread) == (ResultClass.NOT_MEASURED, b"", True)


def test_failure_without_a_connection_has_no_phases() -> None:
    failure = failed(URL("http://a.example/"), TimeoutError(), None, None)
    assert (failure.result, failure.phases) == (ResultClass.TIMEOUT, None)


async def test_phases_of_opening_belong_to_the_first_request_of_a_connection() -> None:
    line = HttpConnection(asyncio.get_running_loop())
    line.dns_ms, line.connect_ms, line.tls_ms = 1.0, 2.0, 3.0
    line.asked, line.sent_at_s, line.first_byte_at_s = 1, 10.0, 10.5
    assert phases_of(line, 11.0) == Phases(
        dns_ms=1.0, connect_ms=2.0, tls_ms=3.0, first_byte_ms=500.0, last_byte_ms=500.0
    )
    line.asked = 2
    assert phases_of(line, 11.0) == Phases(first_byte_ms=500.0, last_byte_ms=500.0)


@pytest.mark.parametrize(
    "why",
    [
        Unreached(result=ResultClass.TIMEOUT, reason="no answer", is_resolver_fault=True),
        Unreached(result=ResultClass.TIMEOUT, reason="no answer", is_given_up=True),
        Unreached(result=ResultClass.TIMEOUT, reason="no answer", is_local_fault=True),
    ],
)
def test_fault_of_name_servers_or_this_machine_is_a_network_fault(why: Unreached) -> None:
    failure = unreached(URL("http://a.example/"), why, None)
    assert (failure.is_network_fault, failure.is_reached) == (True, False)
