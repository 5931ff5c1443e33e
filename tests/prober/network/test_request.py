import pytest
from tests.support.hostile_server import answer, as_json, serving
from tests.support.safe_asking import asking

from lifesign.domain.observation.results import MAX_ETAG_CHARS, ResultClass
from lifesign.errors import InvalidValue


@pytest.mark.parametrize(
    "headers",
    [{"X-A": "a\r\nX-B: b"}, {"X-A\r\nX-B": "b"}, {"X A": "a"}, {"": "a"}, {"X-A": "\u00e4"}, {"X-A": "\0"}],
)
async def test_request_headers_with_line_breaks_are_refused(headers: dict[str, str]) -> None:
    async with serving({"/": answer(200)}) as server, asking() as asker:
        with pytest.raises(InvalidValue, match="headers"):
            await asker.get(f"{server.url}/", headers=headers)
        with pytest.raises(InvalidValue, match="headers"):
            await asker.get(f"{server.url}/", accept="a\r\nX-B: b")
        assert server.heads == []


@pytest.mark.parametrize("etag", ['"a\r\nX-B: b"', '"\u00e4"', '"a\0"', f'"{"a" * MAX_ETAG_CHARS}"'])
async def test_etag_with_characters_forbidden_in_headers_is_ignored(etag: str) -> None:
    async with serving({"/": as_json({})}) as server, asking() as asker:
        fetched = await asker.get(f"{server.url}/", etag=etag)
        assert fetched.result is ResultClass.OK
        assert set(server.asked("/")) == {"host", "user-agent", "accept", "accept-encoding"}
