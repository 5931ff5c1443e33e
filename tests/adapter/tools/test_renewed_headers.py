from collections.abc import Mapping
from http import HTTPStatus

import httpx2

from lifesign.adapter.tools.renewed_headers import RenewedHeaders
from lifesign.errors import InvalidValue

URL = "http://tools.example/"
NAME = "authorization"


class TokenServer:
    """A tool server that accepts one token, and the place from which the adapter reads its token."""

    def __init__(self) -> None:
        self.accepted, self.stored = "Bearer first", "Bearer first"
        self.got: list[str] = []
        self.bodies: list[bytes] = []

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        self.got.append(request.headers.get(NAME, ""))
        self.bodies.append(request.content)
        is_accepted = self.got[-1] == self.accepted
        return httpx2.Response(HTTPStatus.OK if is_accepted else HTTPStatus.UNAUTHORIZED)

    def read(self) -> Mapping[str, str]:
        if not self.stored:
            raise InvalidValue("file", None, "a file that is not empty")
        return {NAME: self.stored}

    def client(self) -> httpx2.AsyncClient:
        sent = self.read()
        transport = RenewedHeaders(httpx2.MockTransport(self.answer), sent, self.read)
        return httpx2.AsyncClient(transport=transport, headers=sent)


async def test_refused_request_is_repeated_with_the_renewed_header() -> None:
    server = TokenServer()
    async with server.client() as http:
        assert (await http.post(URL, content=b"1")).status_code == HTTPStatus.OK
        server.accepted = server.stored = "Bearer second"
        assert (await http.post(URL, content=b"2")).status_code == HTTPStatus.OK
        assert (await http.post(URL, content=b"3")).status_code == HTTPStatus.OK
    assert server.got == ["Bearer first", "Bearer first", "Bearer second", "Bearer second"]
    assert server.bodies == [b"1", b"2", b"2", b"3"]


async def test_refused_request_is_not_repeated_with_the_same_header() -> None:
    server = TokenServer()
    async with server.client() as http:
        server.accepted = "Bearer second"
        assert (await http.post(URL)).status_code == HTTPStatus.UNAUTHORIZED
        server.stored = ""
        assert (await http.post(URL)).status_code == HTTPStatus.UNAUTHORIZED
        assert len(server.got) == 2
        server.stored = "Bearer third"
        assert (await http.post(URL)).status_code == HTTPStatus.UNAUTHORIZED
    assert server.got[2:] == ["Bearer first", "Bearer third"]


async def test_header_that_the_client_has_removed_or_replaced_stays_so() -> None:
    server = TokenServer()
    async with server.client() as http:
        server.accepted = server.stored = "Bearer second"
        request = http.build_request("POST", URL, headers={NAME: "Bearer other"})
        assert (await http.send(request)).status_code == HTTPStatus.UNAUTHORIZED
        request = http.build_request("POST", URL)
        del request.headers[NAME]
        assert (await http.send(request)).status_code == HTTPStatus.UNAUTHORIZED
    assert server.got == ["Bearer other", ""]
