import pytest
from tests.support.databases import WoundClock
from tests.support.hostile_server import (
    HostileServer,
    answer,
    bomb,
    endless_body,
    redirect,
    serving,
    silence,
)
from tests.support.registry_api import RegistryApi

from lifesign.domain.net.allowed_addresses import read_networks
from lifesign.domain.targets.opt_out_proof import PROOF_PATH
from lifesign.registry.settings import RegistrySettings
from lifesign.registry.targets import check_opt_outs
from lifesign.registry.targets.check_opt_outs import CHECK_SECONDS, OptOutChecker, served_proof

LOOPBACK = read_networks(["127.0.0.0/8"])
ELSEWHERE = "/elsewhere"


async def ask(api: RegistryApi, server: HostileServer) -> str:
    asked = await api.ask("POST", "/api/v1/opt-outs", {"url": server.url})
    assert asked.status == 201, asked.body
    return str(asked.json()["token"])


async def is_proven(api: RegistryApi) -> bool:
    (shown,) = (await api.ask("GET", "/api/v1/opt-outs")).json()["opt_outs"]
    return "proven_at" in shown


def checker(api: RegistryApi, *networks: str) -> OptOutChecker:
    return OptOutChecker(api.database, RegistrySettings.read(webhook_networks=networks))


@pytest.mark.both_databases
async def test_served_opt_out_token_is_accepted(api: RegistryApi, clock: WoundClock) -> None:
    async with serving({PROOF_PATH: answer(404)}) as server:
        token = await ask(api, server)
        looking = checker(api, "127.0.0.0/8")
        await looking.check_some()
        assert not await is_proven(api)
        server.replies[PROOF_PATH] = answer(200, b"# ours\n" + token.encode() + b"\n")
        await looking.check_some()
        assert (await is_proven(api), len(server.heads)) == (False, 1)
        # A repeated request is answered at once; otherwise it takes a while.
        await ask(api, server)
        await looking.check_some()
        assert (await is_proven(api), len(server.heads)) == (True, 2)
        assert server.asked(PROOF_PATH)["user-agent"].startswith("lifesign")
        clock.advance(CHECK_SECONDS + 1)
        await looking.check_some()
        assert len(server.heads) == 2


async def test_origin_is_checked_rarely_and_not_forever(api: RegistryApi, clock: WoundClock) -> None:
    async with serving({PROOF_PATH: answer(404)}) as server:
        await ask(api, server)
        looking = checker(api, "127.0.0.0/8")
        for seconds, looks in ((0, 1), (CHECK_SECONDS - 1, 1), (1, 2), (7 * 86_400, 2)):
            clock.advance(seconds)
            await looking.check_some()
            assert len(server.heads) == looks


async def test_blocked_address_is_not_contacted_for_an_opt_out(api: RegistryApi) -> None:
    async with serving({PROOF_PATH: answer(200)}) as server:
        token = await ask(api, server)
        server.replies[PROOF_PATH] = answer(200, token.encode())
        await checker(api).check_some()
        assert (server.heads, await is_proven(api)) == ([], False)


async def test_other_text_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    patient_s = check_opt_outs.GET_SECONDS
    monkeypatch.setattr(check_opt_outs, "GET_SECONDS", 0.2)
    replies = {
        "status": answer(201, b"aho"),
        "redirect": redirect(ELSEWHERE),
        "long": answer(200, b"x" * 4097),
        "endless": endless_body,
        "silent": silence,
    }
    for name, reply in replies.items():
        async with serving({PROOF_PATH: reply, ELSEWHERE: answer(200, b"aho")}) as server:
            assert await served_proof(server.url, LOOPBACK) is None, name
    monkeypatch.setattr(check_opt_outs, "GET_SECONDS", patient_s)
    async with serving({PROOF_PATH: answer(200, b"x" * 4096)}) as server:
        assert await served_proof(server.url, LOOPBACK) == b"x" * 4096
    async with serving({PROOF_PATH: bomb(10_000)}) as server:
        packed = await served_proof(server.url, LOOPBACK)
        assert packed is None or packed.startswith(b"\x1f\x8b")
    assert await served_proof("http://127.0.0.1:1", LOOPBACK) is None
