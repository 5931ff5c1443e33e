import pytest
from tests.support.both_loops import on_both_loops
from tests.support.dns_server import Alias, Answer, Turns
from tests.support.hostile_server import answer, as_json, redirect, serving
from tests.support.safe_asking import HERE, asking

from lifesign.domain.observation.results import ResultClass
from lifesign.prober.network import resolver

BLOCKED_NAMES: dict[str, Answer] = {
    "private": ("10.0.0.5",),
    "home": ("192.168.1.1",),
    "metadata": ("169.254.169.254",),
    "unspecified": ("0.0.0.0",),
    "carrier": ("100.64.0.1",),
    "multicast": ("224.0.0.1",),
    "documentation": ("203.0.113.7",),
    "v6-loopback": ("::1",),
    "v6-private": ("fd00::1",),
    "v6-link-local": ("fe80::1",),
    "mapped": ("::ffff:127.0.0.1",),
    "mapped-metadata": ("::ffff:169.254.169.254",),
    "compatible": ("::127.0.0.1",),
    "six-to-four": ("2002:7f00:1::1",),
    "teredo": ("2001:0:4136:e378:8000:63bf:3fff:fdd2",),
    "nat64": ("64:ff9b::7f00:1",),
    "several": ("10.0.0.1", "127.0.0.1", "::1"),
    "alias": Alias("localhost"),
    "localhost": ("127.0.0.1", "::1"),
}


@pytest.mark.parametrize("name", BLOCKED_NAMES)
@on_both_loops
async def test_host_with_a_blocked_address_is_not_contacted(name: str) -> None:
    names = {f"{key}.example": found for key, found in BLOCKED_NAMES.items()}
    names["localhost"] = HERE
    async with serving({"/": answer(200)}) as server, asking(names, networks=()) as asker:
        fetched = await asker.get(f"http://{name}.example:{server.port}/")
        assert fetched.result is ResultClass.BLOCKED_ADDRESS, fetched
        assert fetched.reason
        assert not fetched.is_reached
        assert server.connections == 0
        assert (fetched.address, fetched.tried) == (None, ())


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://127.0.0.1.:{port}/",
        "http://localhost:{port}/",
        "http://LOCALHOST.:{port}/",
        "http://a.localhost:{port}/",
        "http://0.0.0.0:{port}/",
        "http://[::1]:{port}/",
        "http://[::]:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://[::ffff:7f00:1]:{port}/",
        "http://[64:ff9b::7f00:1]:{port}/",
        "http://[2002:7f00:1::]:{port}/",
        "http://2130706433:{port}/",
        "http://0x7f000001:{port}/",
        "http://0177.0.0.1:{port}/",
        "http://127.1:{port}/",
        "http://127.0.0.0x1:{port}/",
        "http://169.254.169.254/latest/meta-data/",
        "http://user:secret@127.0.0.1:{port}/",
        "http://127.0.0.1:{port}@public.example/",
    ],
)
@on_both_loops
async def test_no_notation_of_a_blocked_address_passes_the_guard(url: str) -> None:
    async with serving({"/": answer(200)}) as server, asking(networks=()) as asker:
        fetched = await asker.get(url.format(port=server.port))
        assert fetched.result is ResultClass.BLOCKED_ADDRESS, fetched
        assert "secret" not in fetched.reason
        assert server.connections == 0
        assert asker.dns.asked.total() == 0


@on_both_loops
async def test_name_that_changes_between_lookups_is_not_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolver, "MIN_TTL_SECONDS", 0)
    names = {"rebinds.example": Turns(("127.0.0.1",), ("169.254.169.254",))}
    async with serving({"/": as_json({})}) as server, asking(names, ttl_s=0) as asker:
        first = await asker.get(f"http://rebinds.example:{server.port}/")
        assert first.result is ResultClass.OK, first.reason
        assert str(first.address) == "127.0.0.1"
        # It was resolved once, and the checked address was contacted.
        assert asker.resolver.lookups == 1
        assert server.asked("/")["host"] == f"rebinds.example:{server.port}"
        second = await asker.get(f"http://rebinds.example:{server.port}/")
        assert second.result is ResultClass.BLOCKED_ADDRESS, second
        assert "metadata" in second.reason
        assert server.connections == 1


@on_both_loops
async def test_one_private_address_among_many_public_ones_is_never_called() -> None:
    public = tuple(f"127.1.{number // 200}.{number % 200 + 1}" for number in range(300))
    names: dict[str, Answer] = {"many.example": ("127.0.0.1", *public)}
    # 127.1.0.0/16 plays the public internet, 127.0.0.1 the machine itself.
    async with (
        serving({"/": answer(200)}) as server,
        asking(names, networks=("127.1.0.0/16",)) as asker,
    ):
        fetched = await asker.get(f"http://many.example:{server.port}/")
        assert fetched.result is ResultClass.REFUSED, fetched
        assert str(fetched.address).startswith("127.1.")
        assert server.connections == 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@on_both_loops
async def test_redirect_is_checked_again(status: int) -> None:
    names: dict[str, Answer] = {"public.example": ("127.1.0.1",), "private.example": ("127.0.0.1",)}
    async with serving({"/": answer(200)}) as inside:
        replies = {
            "/literal": redirect(f"http://127.0.0.1:{inside.port}/", status),
            "/name": redirect(f"http://private.example:{inside.port}/", status),
            "/metadata": redirect("http://169.254.169.254/latest/meta-data/", status),
        }
        async with (
            serving(replies, host="127.1.0.1") as outside,
            asking(names, networks=("127.1.0.0/16",)) as asker,
        ):
            for path in replies:
                fetched = await asker.get(
                    f"http://public.example:{outside.port}{path}", may_leave_origin=True
                )
                assert fetched.result is ResultClass.BLOCKED_ADDRESS, fetched
        assert inside.connections == 0


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        "//",
        "http://",
        "http://user:secret@here.example/",
        "http://2130706433/",
        "http://here.example:0/",
        "http://here.example:99999/",
        "http:\\\\here.example\\",
        "x" * 5000,
    ],
)
@on_both_loops
async def test_redirect_to_an_invalid_url_is_refused(location: str) -> None:
    async with serving({"/": redirect(location)}) as server, asking({"here.example": HERE}) as asker:
        fetched = await asker.get(f"http://here.example:{server.port}/", may_leave_origin=True)
        if fetched.result is ResultClass.NOT_AN_AGENT:
            # The redirect was read as a path on the same host, which serves nothing there.
            assert {head.split()[0] for head in server.heads} == {"GET"}
            assert fetched.url.host == "here.example"
        else:
            assert fetched.result in {ResultClass.REDIRECT_REFUSED, ResultClass.BLOCKED_ADDRESS}, fetched
        assert "secret" not in fetched.reason


@on_both_loops
async def test_redirects_in_a_circle_end() -> None:
    replies = {"/a": redirect("/b"), "/b": redirect("/a"), "/": redirect("/")}
    async with serving(replies) as server, asking() as asker:
        for path in ("/a", "/"):
            fetched = await asker.get(f"{server.url}{path}")
            assert fetched.result is ResultClass.REDIRECT_REFUSED
            assert "more than 3" in fetched.reason
    assert len(server.heads) == 8
