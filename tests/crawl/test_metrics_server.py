import asyncio
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.crawling import Shown
from tests.support.hostile_mcp import HTML, TOOL, Parts, older, reacting, reply, whole
from tests.support.mcp_stream_server import old, streaming
from tests.support.metrics import HAS_PROMTOOL, Scraped, complaints
from tests.support.mixed_directory import DEFINITION, mixed_directory
from tests.support.servers import PATIENCE_SECONDS, REPOSITORY

from lifesign.cli import main
from lifesign.crawl.backend import open_local_backend
from lifesign.crawl.metric_families import PREFIX, crawl_families
from lifesign.crawl.metrics_server import place_in, serving_metrics
from lifesign.crawl.run import Crawl
from lifesign.domain.observation.assertion import AssertionOutcome
from lifesign.domain.observation.results import ResultClass
from lifesign.errors import InvalidValue
from lifesign.prober.definition.file import read_definition_file
from lifesign.serving.errors import CannotListen


def fetch(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_SECONDS) as answer:
        return str(answer.read().decode())


async def test_crawl_reports_its_progress_as_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with (
        mixed_directory(tmp_path),
        open_local_backend("sqlite:///mixed.db", None, is_once=True) as home,
    ):
        crawl = Crawl(read_definition_file(Path("mixed.yml")), home, Shown(), asyncio.Event())
        async with serving_metrics("127.0.0.1:0", lambda: crawl_families(crawl)) as port:
            assert port is not None
            before = Scraped(await asyncio.to_thread(fetch, port))
            assert before.value(f"{PREFIX}workers") == 0
            crawled = await crawl.once(processes=1)
            text = await asyncio.to_thread(fetch, port)
    assert not HAS_PROMTOOL or complaints(text) == ""
    found = Scraped(text)
    (worker,) = {labels["worker"] for labels in found.labels(f"{PREFIX}targets")}
    ended = sum(
        found.value(f"{PREFIX}probes_total", worker=worker, result=result.value) or 0
        for result in ResultClass
    )
    assert ended == crawled.probed > 0
    # A counter's increase needs the time before the first probe.
    assert {labels["result"] for labels in found.labels(f"{PREFIX}probes_total")} == set(ResultClass)
    assert {labels["result"] for labels in found.labels(f"{PREFIX}assertions_total")} == set(AssertionOutcome)
    assert found.value(f"{PREFIX}results_reported_total", worker=worker) == crawled.probed
    assert found.value(f"{PREFIX}unreached_classes", worker=worker) == 0
    assert found.value(f"{PREFIX}failures_waiting", worker=worker) == 0
    assert found.value(f"{PREFIX}in_flight", worker=worker) == 0
    assert found.value(f"{PREFIX}targets_left", worker=worker) == 0
    assert found.value(f"{PREFIX}directories", state="read") == 1
    # Readers of the metrics do not learn the targets.
    assert "127.0.0.1" not in text
    named = re.findall(r"`(lifesign_prober_\w+)`", (REPOSITORY / "docs" / "monitoring.md").read_text())
    assert {f"{each.name}_total" if each.type == "counter" else each.name for each in found.families} == set(
        named
    )


async def test_crawl_of_mcp_servers_moves_the_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def tools(message: dict[str, Any]) -> Parts:
        tool = TOOL | {"name": "search", "annotations": {"readOnlyHint": True}}
        content = [{"type": "text", "text": "nothing"}]
        return whole(reply(message, tools=[tool], content=content))

    async with (
        reacting(tools) as answering,
        reacting(older(lambda message: whole(reply(message)))) as handshaking,
        reacting(lambda _: whole(b"<html>", kind=HTML)) as page,
        reacting(lambda _: whole(status=401)) as gated,
        streaming(old) as streamed,
        open_local_backend("sqlite:///mcp.db", None, is_once=True) as home,
    ):
        ask = {"tools": True, "call": {"tool": "search", "arguments": {}}}
        checks = [{"of": "tool", "text_contains": text} for text in ("nothing", "something")]
        targets: list[dict[str, Any]] = [
            {"url": answering, "ask": ask, "assertions": checks},
            *({"url": url} for url in (handshaking, page, gated, streamed.url)),
        ]
        defined = yaml.safe_load(DEFINITION) | {
            "targets": [target | {"kind": "mcp"} for target in targets],
            "directories": [],
            "ask": {"health": False},
        }
        file = tmp_path / "mcp.yml"
        file.write_text(yaml.safe_dump(defined))
        crawl = Crawl(read_definition_file(file), home, Shown(), asyncio.Event())
        async with serving_metrics("127.0.0.1:0", lambda: crawl_families(crawl)) as port:
            assert port is not None
            before = Scraped(await asyncio.to_thread(fetch, port))
            await crawl.once(processes=1)
            after = Scraped(await asyncio.to_thread(fetch, port))
    assert not [*before.labels(f"{PREFIX}probes_total")]
    (worker,) = {labels["worker"] for labels in after.labels(f"{PREFIX}targets")}

    def counts(name: str) -> dict[str, float]:
        results = [labels["result"] for labels in after.labels(PREFIX + name)]
        values = {result: after.value(PREFIX + name, worker=worker, result=result) for result in results}
        return {result: value for result, value in values.items() if value}

    assert counts("probes_total") == {"ok": 3, "not_an_agent": 1, "gated": 1}
    assert counts("assertions_total") == {"ok": 1, "assertion_failed": 1}
    assert after.value(f"{PREFIX}results_reported_total", worker=worker) == 5


@pytest.mark.parametrize(
    ("text", "place"),
    [("127.0.0.1:9109", ("127.0.0.1", 9109)), ("[::1]:0", ("::1", 0)), ("h:65535", ("h", 65_535))],
)
def test_metrics_address_is_host_and_port(text: str, place: tuple[str, int]) -> None:
    assert place_in(text) == place


@pytest.mark.parametrize(
    "text", ["", "9109", ":9109", "host:", "host:x", "::1:9109", "h:65536", "h:٣", "h:" + "9" * 99]
)
def test_invalid_metrics_address_is_refused_before_listening(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidValue):
        place_in(text)
    monkeypatch.chdir(tmp_path)
    Path("one.yml").write_text(
        "name: one\ncontact: mailto:ops@agent.example\ntargets: [https://agent.example/]\n"
    )
    assert main(["crawl", "one.yml", "--metrics", text]) == 3
    assert "--metrics" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["one.yml"]


async def test_occupied_port_is_reported() -> None:
    async with serving_metrics("127.0.0.1:0", list) as port:
        with pytest.raises(CannotListen) as refused:
            async with serving_metrics(f"127.0.0.1:{port}", list):
                pass
        assert "port" in refused.value.hint
    async with serving_metrics(None, list) as nothing:
        assert nothing is None
