from collections.abc import Callable
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.both_loops import on_both_loops
from tests.support.hostile_server import as_json, redirect, serving
from tests.support.safe_asking import HERE, asking
from yarl import URL

from lifesign.domain.observation.results import ResultClass
from lifesign.prober.network.request import HARMLESS_HEADERS


@on_both_loops
async def test_a_redirect_is_followed_within_its_origin() -> None:
    replies = {"/a": redirect("/b"), "/b": redirect("c", 308), "/c": as_json({"found": True})}
    async with serving(replies) as server, asking() as asker:
        fetched = await asker.get(f"{server.url}/a")
    assert fetched.result is ResultClass.OK
    assert fetched.url == URL(f"{server.url}/c")
    assert server.paths == ["/a", "/b", "/c"]


async def test_addresses_that_failed_before_a_redirect_are_kept() -> None:
    names = {"both.example": ("127.0.0.9", "127.0.0.1"), "here.example": HERE}
    async with serving({"/": as_json({})}) as other:
        location = f"http://here.example:{other.port}/"
        async with serving({"/": redirect(location)}) as server, asking(names) as asker:
            fetched = await asker.get(f"http://both.example:{server.port}/", may_leave_origin=True)
    assert (str(fetched.url), fetched.address) == (location, ip_address("127.0.0.1"))
    assert fetched.tried == (ip_address("127.0.0.9"),)


async def test_redirect_to_another_origin_needs_permission_of_the_caller() -> None:
    names = {"one.example": HERE, "other.example": HERE}
    async with serving({"/": as_json({})}) as other:
        location = f"http://other.example:{other.port}/"
        async with serving({"/": redirect(location)}) as server, asking(names) as asker:
            url = f"http://one.example:{server.port}/"
            assert (await asker.get(url)).result is ResultClass.REDIRECT_REFUSED
            assert other.heads == []
            allowed = await asker.get(url, may_leave_origin=True)
            assert allowed.result is ResultClass.OK
            assert str(allowed.url) == location
            assert allowed.redirected_by == ip_address("127.0.0.1")
            assert not (await asker.get(location)).is_foreign


@pytest.mark.parametrize("name", ["Authorization", "Cookie", "X-Api-Key", "X-Anything"])
async def test_secrets_are_sent_only_to_their_origin(name: str) -> None:
    async with serving({"/": as_json({})}) as other:
        replies = {"/": redirect(f"{other.url}/"), "/in": redirect("/x")}
        async with serving(replies) as server, asking() as asker:
            fetched = await asker.get(f"{server.url}/", may_leave_origin=True, headers={name: "secret"})
            assert fetched.result is ResultClass.REDIRECT_REFUSED
            assert other.heads == []
            # Within the origin it may be seen again.
            await asker.get(f"{server.url}/in", headers={name: "secret"})
            assert server.asked("/x")[name.lower()] == "secret"


@given(st.sampled_from(sorted(HARMLESS_HEADERS)), st.sampled_from([str.upper, str.title, str.lower]))
def test_headers_kept_across_origins_are_matched_case_insensitively(
    name: str, written: Callable[[str], str]
) -> None:
    assert HARMLESS_HEADERS.issuperset(map(str.lower, {written(name): "1"}))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirected_post_stays_a_post_or_is_not_followed(status: int) -> None:
    replies = {"/": redirect("/there", status), "/there": as_json({})}
    async with serving(replies) as server, asking() as asker:
        fetched = await asker.post(f"{server.url}/", b'{"say":"hello"}')
    if status in {307, 308}:
        assert fetched.result is ResultClass.OK
        assert server.heads[1].startswith("POST /there")
        assert server.asked("/there")["content-length"] == "15"
    else:
        assert fetched.result is ResultClass.REDIRECT_REFUSED
        assert server.paths == ["/"]
