"""A prober put together from its definition: what its parts know of each other."""

import asyncio
from dataclasses import replace
from pathlib import Path

from tests.support.dns_server import Failure, Names, dns_serving
from tests.support.hostile_server import CARD_PATH, as_json, serving
from tests.support.probing import definition, entry

from lifesign.crawl.prober_assembly import open_prober, open_token_owner
from lifesign.domain.observation.results import ResultClass
from lifesign.prober.secrets.secret_reader import Secrets

AT_S = 1_790_000_000.0


def files_of(directory: Path) -> list[Path]:
    return [*directory.rglob("*.gz")]


async def test_prober_without_contact_sends_nothing_to_public_addresses() -> None:
    names: Names = {"public.example": ("93.184.215.14",), "local.example": ("127.0.0.2",)}
    async with serving({}, host="127.0.0.2") as server, dns_serving(names) as dns:
        wanted = definition(resolver={"servers": [dns.address]})
        async with open_prober(wanted, is_public_allowed=False) as opened:
            local, public = [
                await opened.prober.probe(entry(f"http://{name}:{server.port}/"), AT_S)
                for name in ("local.example", "public.example")
            ]
    assert local.result is not ResultClass.BLOCKED_ADDRESS
    assert public.result is ResultClass.BLOCKED_ADDRESS
    assert public.observation.discovery is not None
    assert "no contact" in (public.observation.discovery.reason or "")


async def test_second_request_does_not_repeat_a_remembered_dns_failure() -> None:
    names: Names = {"back.example": Failure.NXDOMAIN}
    async with serving({}, host="127.0.0.2") as server, dns_serving(names) as dns:
        wanted = definition(resolver={"servers": [dns.address]})
        target = entry(f"http://back.example:{server.port}/")
        async with open_prober(wanted) as opened:
            absent = await opened.prober.probe(target, AT_S)
            dns.names["back.example"] = ("127.0.0.2",)
            remembered = await opened.prober.probe(target, AT_S)
            second = await opened.prober.probe(replace(target, is_repeat=True), AT_S)
    assert [absent.result, remembered.result] == [ResultClass.DNS_FAILURE] * 2
    assert second.result is ResultClass.NOT_AN_AGENT


async def test_second_request_after_a_name_failure_looks_up_addresses_again() -> None:
    names: Names = {"back.example": ("127.0.0.3",)}
    async with serving({}, host="127.0.0.2") as server, dns_serving(names) as dns:
        wanted = definition(resolver={"servers": [dns.address]})
        target = entry(f"http://back.example:{server.port}/")
        async with open_prober(wanted) as opened:
            wrong = await opened.prober.probe(target, AT_S)
            dns.names["back.example"] = ("127.0.0.2",)
            second = replace(target, is_repeat=True)
            kept = await opened.prober.probe(second, AT_S)
            now_s = asyncio.get_running_loop().time()
            found = await opened.prober.probe(replace(second, name_failed_at_s=now_s), AT_S)
    assert [wrong.result, kept.result] == [ResultClass.REFUSED] * 2
    assert found.result is ResultClass.NOT_AN_AGENT


async def test_no_process_owns_tokens_without_an_oauth_client() -> None:
    bearer = {"name": "acme", "origin": "https://acme.example", "bearer": {"env": "X"}}
    async with open_token_owner(definition(credentials=[bearer]), Secrets()) as owner:
        assert owner is None


async def test_evidence_of_a_probe_is_stored_until_the_prober_ends(tmp_path: Path) -> None:
    async with serving({CARD_PATH: as_json({"name": "no card"})}) as server:
        wanted = definition(evidence={"directory": str(tmp_path)})
        async with open_prober(wanted) as opened:
            report = await opened.prober.probe(entry(server.url), AT_S)
    assert report.observation.discovery is not None
    digest = report.observation.discovery.evidence
    assert digest is not None
    assert len(files_of(tmp_path)) == 1
