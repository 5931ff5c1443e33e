import asyncio
import csv
import errno
import io
import json
import os
import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from subprocess import PIPE
from unittest.mock import patch

import pytest
from jsonschema import Draft202012Validator
from sqlalchemy import delete, update
from tests.support.agent_check import card
from tests.support.complaints import problems_in
from tests.support.hostile_server import CARD_PATH, HEALTH_PATH, answer, as_json, serving, silence
from tests.support.mcp_answers import handshaking
from tests.support.message_server import agent
from tests.support.mixed_directory import DEFINITION, mixed_directory
from tests.support.preloaded import PROGRAM, PreloadedProcess
from tests.support.registry_server import RegistryServer
from tests.support.servers import PATIENCE_SECONDS
from tests.support.small_disk import fill, mounted

from lifesign.cli import main
from lifesign.client.environment_variables import KEY_VARIABLE
from lifesign.crawl import process as process_module
from lifesign.storage.engine.table_definitions import census_runs, probe_results
from lifesign.storage.engine.transaction import Transaction

SCHEMA = json.loads((Path(__file__).parents[3] / "schemas" / "census.schema.json").read_text())
ALLOW = ("--allow-network", "127.0.0.0/8")


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def census(*arguments: str) -> int:
    # The command opens a loop of its own, and removes the key from the environment.
    with patch.dict(os.environ):
        return await asyncio.to_thread(main, ["census", *arguments])


@pytest.mark.parametrize("for_all", ["true", "false"])
async def test_a_list_is_probed_with_the_credentials_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], for_all: str
) -> None:
    monkeypatch.setenv("LAB_TOKEN", "canary-3a4b5c6d")
    async with serving({"/rpc": answer(403)}) as server:
        server.replies[CARD_PATH] = as_json(card(url=f"{server.url}/rpc"))
        (tmp_path / "agents.txt").write_text(f"{server.url}\n")
        (tmp_path / "lab.yml").write_text(
            f"credentials: [{{name: lab, origin: '{server.url}', for_all_targets: {for_all}, "
            "bearer: {env: LAB_TOKEN}}]\n"
        )
        ended = await census("agents.txt", *ALLOW, "--credential", "lab.yml", "--json")
        sent = server.asked("/rpc").get("authorization")
    shown = capsys.readouterr()
    assert ended == 0
    assert json.loads(shown.out)["groups"]["alive"] == 1
    assert shown.err.count("credential lab") == 1
    assert (sent == "Bearer canary-3a4b5c6d") is (for_all == "true")
    assert ("set for_all_targets: true" in shown.err) is (for_all == "false")
    assert "canary" not in shown.out + shown.err
    # Nothing is probed: the option has no meaning.
    assert await census("agents.db", "--credential", "lab.yml") == 3


@pytest.mark.parametrize(("kind", "alive"), [((), 0), (("--kind", "mcp"), 1), (("--kind", "a2a"), 0)])
async def test_kind_of_a_list_says_whether_its_entries_are_probed_as_mcp_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: tuple[str, ...], alive: int
) -> None:
    async with agent(handshaking, {}) as server:
        (tmp_path / "list.txt").write_text(f"{server.url}/mcp\n")
        assert await census("list.txt", *ALLOW, *kind, "--json") == 0
    assert json.loads(capsys.readouterr().out)["groups"]["alive"] == alive
    assert bool(server.posted) == bool(alive)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["list.txt", "--kind", "ftp"], "--kind"),
        (["list.yaml", "--kind", "mcp"], "list.yaml"),
        (["sqlite:///known.db", "--kind", "mcp"], "--kind"),
    ],
)
def test_kind_without_a_list_is_wrong_usage(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["census", *arguments]) == 3
    assert part in capsys.readouterr().err


async def test_second_census_of_a_list_is_compared_with_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with mixed_directory(tmp_path) as servers:
        assert await census("agents.txt", *ALLOW, "--contact", "mailto:me@agent.example") == 0
        shown = capsys.readouterr()
        assert "mailto:me@agent.example" in servers["bare"].heads[0]
        assert shown.out.startswith(
            "# Census: agents\n\n3 of 6 measured targets are alive (50.0 %), 1 of them behind a gate.\n"
        )
        assert "6 of 6 probed" in shown.err
        assert re.findall(r"after (\d+) s", shown.out) == ["10", "20"]
        for path in list(servers["bare"].replies):
            servers["bare"].replies[path] = answer(500)
        assert await census("agents.txt", *ALLOW, "--json", "--timeout", "7") == 0
    shown = capsys.readouterr()
    counted = json.loads(shown.out)
    assert list(Draft202012Validator(SCHEMA).iter_errors(counted)) == []
    assert counted["groups"] == {"alive": 2, "not_alive": 4, "unknown": 0, "never_probed": 0}
    assert [run["groups"]["alive"] for run in counted["runs"]] == [3, 2]
    assert round(counted["runs"][1]["change"], 3) == -0.167
    assert counted["directories"][0]["name"] == "agents.txt"
    assert {layer["layer"] for layer in counted["layers"]} >= {"discovery", "readiness"}
    assert counted["layers"][0]["latency"]["count"] > 0
    assert [row["count"] for row in counted["shown"]] == [1, 1]
    # The first time was within the same hour, and is not counted again.
    assert all(layer["count"] <= 6 for layer in counted["layers"])
    assert (counted["since"], counted["until"]) == tuple(
        counted["runs"][1][at] for at in ("began_at", "ended_at")
    )
    assert counted["deadlines"] == {
        "connect_seconds": 5,
        "first_byte_seconds": 10,
        "total_seconds": 7,
    }
    # Known targets are not probed again, with a shorter timeout too.
    assert await census("agents.db", "--format", "csv") == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out, newline="")))
    assert ["deadlines", "", "total_seconds", "7"] in [[*row[:3], row[3].removesuffix(".0")] for row in rows]
    assert ["targets", "", "alive", "2"] in rows
    assert await census("agents.txt", "--no-crawl", "--output", "report") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "report/census.md",
        "report/census.json",
        "report/census.csv",
        "report/census.html",
        "report/targets.csv",
        "2 of 6 measured targets are alive (33.3 %), 1 of them behind a gate.",
    ]
    assert all((tmp_path / line).read_text() for line in lines[:5])
    written = (tmp_path / "report/targets.csv").read_bytes().decode()
    rows = list(csv.reader(io.StringIO(written, newline="")))
    assert [len(rows), sorted(row[2] for row in rows[1:])] == [
        7,
        ["gated", "http_error", "http_error", "not_an_agent", "ok", "refused"],
    ]


async def test_a_card_that_is_known_counts_in_each_run_of_a_day(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def targets() -> list[list[str]]:
        assert main(["targets", "list", "--database", "sqlite:///one.db", "--csv"]) == 0
        return list(csv.reader(io.StringIO(capsys.readouterr().out, newline="")))[1:]

    counted, known = [], []
    async with serving({}) as server:
        server.replies |= {CARD_PATH: as_json(card(url=f"{server.url}/rpc")), "/rpc": answer(401)}
        (tmp_path / "one.txt").write_text(server.url)
        for _ in range(2):
            assert await census("one.txt", *ALLOW, "--json") == 0
            shown = capsys.readouterr()
            assert "1 alive (ok 1)" in shown.err
            counted.append(json.loads(shown.out))
            known.append(await asyncio.to_thread(targets))
        cards = [head for head in server.heads if CARD_PATH in head]
    assert len(cards) == 1
    for census_of_run in counted:
        assert [(row["result"], row["count"]) for row in census_of_run["results"]] == [("ok", 1)]
    ((_, _, result, since, *_),) = known[0]
    assert [row[2:4] for row in known[1]] == [[result, since]]
    discovery = [run["layers"][0] for run in counted]
    assert [(layer["layer"], layer["count"], layer["not_asked"]) for layer in discovery] == [
        ("discovery", 1, 0),
        ("discovery", 0, 1),
    ]
    assert await census("one.db") == 0
    report = capsys.readouterr().out
    assert re.search(r"^\| card +\| known, not read again \| +1 \| +\u2013 \|$", report, re.MULTILINE)


async def test_rate_limited_target_counts_by_its_earlier_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def targets() -> str:
        assert main(["targets", "list", "--database", "sqlite:///one.db", "--csv"]) == 0
        return capsys.readouterr().out

    shown, known = [], []
    busy = answer(503, Retry_After="600")
    async with serving({CARD_PATH: busy, "/.well-known/agent.json": busy, HEALTH_PATH: busy}) as server:
        (tmp_path / "one.txt").write_text(server.url)
        for _ in range(2):
            assert await census("one.txt", *ALLOW, "--json") == 0
            shown.append(capsys.readouterr())
            known.append(await asyncio.to_thread(targets))
    assert "1 unknown (not_measured 1)" in shown[1].err
    assert known[0] == known[1]
    counted = json.loads(shown[1].out)
    assert counted["groups"]["not_alive"] == 1
    assert [(run["groups"]["not_alive"], run["groups"]["unknown"]) for run in counted["runs"]] == [
        (1, 0),
        (0, 1),
    ]
    assert await census("one.db") == 0
    output = capsys.readouterr().out
    assert output.splitlines()[2].startswith("0 of 1 ")
    assert "In the last run 1 was not measured, and counts with their earlier result." in output


async def test_results_from_before_a_clock_setback_do_not_prevent_probes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with mixed_directory(tmp_path) as servers:
        assert await census("agents.txt", *ALLOW, "--json") == 0
        first = json.loads(capsys.readouterr().out)
        set_back("agents.db", 2 * 86_400.0)
        asked = len(servers["bare"].heads)
        assert await census("agents.txt", *ALLOW, "--json") == 0
        shown = capsys.readouterr()
        assert len(servers["bare"].heads) > asked
    counted = json.loads(shown.out)
    assert "in the future" in shown.err
    assert "6 of 6 probed" in shown.err
    assert counted["groups"] == first["groups"]
    # The layers are those of the pass that was made now.
    assert counted["until"] < counted["runs"][-1]["began_at"]
    assert counted["layers"][0]["count"] == first["layers"][0]["count"]
    assert await census("agents.db") == 0
    assert "in the future" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("", "nothing was named"), (".", "no regular file"), ("pipe", "no regular file"),
        ("none.txt", "No such file"), ("-", "No such file"), ("x" * 300, os.strerror(errno.ENAMETOOLONG)),
    ],
)  # fmt: skip
def test_unreadable_list_is_a_usage_error_and_leaves_no_file(
    source: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert main(["census", source]) == 3
    output = capsys.readouterr().err
    assert "FILE|URL: " in output
    assert why in output
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]


async def test_pass_without_probes_is_not_a_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none.txt").write_text("https://agent.example\n")
    (tmp_path / "none.yml").write_text(
        "{name: none, contact: 'mailto:me@agent.example', directories: [{file: none.txt}],"
        " opt_out: {hosts: [agent.example]}}"
    )
    assert await census("none.yml", "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"] == []


async def test_opted_out_catalog_is_not_read_through_another_catalog(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nested = {"identifier": "urn:closed", "type": "application/ai-catalog+json"}
    agent = {"identifier": "urn:one", "type": "application/a2a-agent-card+json"}
    async with serving({}, host="127.0.0.2") as closed, serving({}) as server:
        entries = [{**nested, "url": f"{closed.url}/catalog"}, {**agent, "url": f"{server.url}/card.json"}]
        server.replies["/catalog"] = as_json({"specVersion": "1.0", "entries": entries})
        (tmp_path / "one.yml").write_text(
            f"{{name: one, directories: [{{url: '{server.url}/catalog'}}], contact: 'mailto:me@a.example',"
            " networks: {allow: [127.0.0.0/8]}, opt_out: {hosts: [127.0.0.2]}}"
        )
        assert await census("one.yml", "--json") == 0
        assert closed.heads == []
    shown = capsys.readouterr()
    assert "opted out: 127.0.0.2" in shown.err
    assert json.loads(shown.out)["listed"] == 1


def set_back(file: str, by_s: float) -> None:
    """Change the results of a crawl as if its clock had been ahead by this much."""
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(
            "UPDATE census_runs SET began_at_s = began_at_s + ?1, ended_at_s = ended_at_s + ?1", [by_s]
        )
        database.execute("UPDATE probe_results SET observed_at_s = observed_at_s + ?", [by_s])
        for name in ("probed_at_s", "robots_read_at_s", "card_read_at_s"):
            changed = f"json_replace(memory, '$.{name}', memory ->> '{name}' + ?)"
            database.execute(f"UPDATE probe_results SET memory = {changed}", [by_s])  # noqa: S608 - our own names


async def test_census_of_a_definition_counts_its_targets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agents.txt").write_text("http://127.0.0.1:1/\n")
    (tmp_path / "mixed.yml").write_text(DEFINITION)
    assert await census("mixed.yml", "--database", "sqlite:///here.db", "--format", "html") == 0
    assert "<title>Census: mixed</title>" in capsys.readouterr().out
    assert (tmp_path / "here.db").exists()


async def test_census_of_a_registry_equals_that_of_its_database(
    tmp_path: Path, registry: RegistryServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async with mixed_directory(tmp_path):
        assert await census("mixed.yml", "--registry", registry.url, "--json") == 0
    there = json.loads(capsys.readouterr().out)
    assert await census(registry.database_url, "--json") == 0
    here = json.loads(capsys.readouterr().out)
    moving = {"made_at", "until"}
    assert {key: there[key] for key in there.keys() - moving} == {
        key: here[key] for key in here.keys() - moving
    }
    assert there["groups"]["alive"] == 3
    assert [run["groups"]["alive"] for run in there["runs"]] == [3]
    assert {row["name"] for row in there["generations"]} == {"0.3", "(not known)"}
    # Known results are printed without a list or a probe.
    assert await census("--registry", registry.url) == 0
    by_option = capsys.readouterr().out
    # The fixture names the registry by its variable.
    assert await census() == 0
    assert capsys.readouterr().out.splitlines()[0] == by_option.splitlines()[0]
    assert by_option.startswith("# Census: mixed\n\n3 of 6 measured targets are alive")


async def test_census_of_a_registry_without_a_prober_is_empty_with_a_reason(
    tmp_path: Path, registry: RegistryServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async with mixed_directory(tmp_path):
        assert await census("mixed.yml", "--registry", registry.url) == 0
    await asyncio.to_thread(registry.write, make_old)
    capsys.readouterr()
    assert await census("--registry", registry.url) == 0
    assert "\n3 of 6 " in capsys.readouterr().out, "not limited by the age of the results"
    await asyncio.to_thread(registry.write, forget_runs)
    assert await census("--registry", registry.url, "--json") == 0
    output = json.loads(capsys.readouterr().out)
    assert output["groups"]["alive"] == output["groups"]["not_alive"] == 0
    assert output["alive_ratio"] is None
    assert [(row["name"], row["count"]) for row in output["old"]] == [("no_prober", 6)]
    assert output["evidence_at"] < output["made_at"]
    assert await census("--registry", registry.url) == 0
    report = capsys.readouterr().out
    assert " (6)" in report
    assert f"{output['evidence_at'][:10]} " in report
    listed = ["targets", "list", "--registry", registry.url]
    assert await asyncio.to_thread(main, [*listed, "--json"]) == 0
    assert {row["is"] for row in json.loads(capsys.readouterr().out)["targets"]} <= {"unknown"}
    assert await asyncio.to_thread(main, [*listed, "--alive"]) == 0
    assert capsys.readouterr().out == "no target matches\n"
    assert await asyncio.to_thread(main, listed) == 0
    assert "results about it" in capsys.readouterr().out


def forget_runs(transaction: Transaction) -> None:
    transaction.connection.execute(delete(census_runs))


def make_old(transaction: Transaction) -> None:
    """Let all evidence be an hour older."""
    moved = {
        name: probe_results.c[name] - 3_600
        for name in ("evidence_at_s", "evidence_until_s", "results_until_s")
    }
    transaction.connection.execute(update(probe_results).values(moved))


def test_impossible_hosts_are_skipped_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = "".join(f"http://127.0.0.1:9/{number}\n" for number in range(3))
    (tmp_path / "list.txt").write_text(f"{good}exa_mple..com\n{'a' * 64}.example\n256.1.1.1\n")
    assert main(["census", "list.txt", *ALLOW, "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["listed"] == 3
    assert "3 neither a URL nor a domain" in shown.err
    assert "exa_mple..com" in shown.err


def test_another_list_of_the_same_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "list.txt").write_text(f"http://127.0.0.1:9/{name}\n")
    assert main(["census", "a/list.txt"]) == 0
    for more in ((), ("--no-crawl",)):
        capsys.readouterr()
        assert main(["census", "b/list.txt", *more]) == 3
        complaint = capsys.readouterr().err.splitlines()[-1]
        assert f"{tmp_path}/a/list.txt" in complaint
        assert "b/list.txt" in complaint
        assert "--database" in complaint
        assert "sqlite:///list.db" in complaint
    # Spelled otherwise it is the list that was counted; nothing was begun meanwhile and left open.
    assert main(["census", str(tmp_path / "b/../a/list.txt"), "--json"]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert (counted["listed"], [run["ended_at"] is None for run in counted["runs"]]) == (1, [False, False])
    (tmp_path / "a/list.txt").rename(tmp_path / "b/list.txt")
    assert main(["census", "b/list.txt", "--moved"]) == 0
    assert main(["census", "b/list.txt", "--no-crawl"]) == 0


async def test_list_name_that_differs_only_in_case_is_refused(
    tmp_path: Path, registry: RegistryServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for directory, name in (("one", "Agents.txt"), ("one", "agents.txt"), ("two", "Agents.txt")):
        (tmp_path / directory).mkdir(exist_ok=True)
        (tmp_path / directory / name).write_text(f"http://127.0.0.1:9/{name}\n")
    for place, apart in (
        (("--database", "sqlite:///here.db"), "--database URL"),
        (("--registry", registry.url), "definition"),
    ):
        assert await census("one/Agents.txt", *ALLOW, *place) == 0
        capsys.readouterr()
        assert await census("one/agents.txt", *ALLOW, *place) == 3
        complaint = capsys.readouterr().err.splitlines()[-1]
        assert "the list agents.txt: expected " in complaint
        assert "one/Agents.txt" in complaint.partition(", the source of")[0]
        assert apart in complaint
        assert await census("one/agents.txt", *ALLOW, *place, "--moved", "--json") == 0
        assert json.loads(capsys.readouterr().out)["listed"] == 1
    # Machines that share a registry have copies in several places; another list is no copy.
    for copied, code in (("Agents.txt", 3), ("agents.txt", 0)):
        (tmp_path / "two/agents.txt").write_bytes((tmp_path / "one" / copied).read_bytes())
        assert await census("two/agents.txt", *ALLOW, "--registry", registry.url) == code


async def test_two_lists_of_one_host_need_separate_databases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = as_json({"specVersion": "1.0", "entries": [{"url": "http://127.0.0.1:9/c"}]})
    pages = {f"/{name}": answer(200, f"http://127.0.0.1:9/{name}\n".encode()) for name in ("a", "b")}
    async with serving({**pages, "/.well-known/ai-catalog.json": catalog}) as server:
        assert await census(f"{server.url}/a", *ALLOW) == 0
        for other in (f"{server.url}/b", server.url):
            capsys.readouterr()
            assert await census(other, *ALLOW) == 3
            complaint = capsys.readouterr().err.splitlines()[-1]
            assert f"expected {server.url}/a, " in complaint
            assert " sqlite:///127.0.0.1.db" in complaint
            assert "--database URL" in complaint
            assert f"got '{other}" in complaint
        assert await census(f"{server.url}/a", *ALLOW, "--no-crawl", "--json") == 0
        assert json.loads(capsys.readouterr().out)["listed"] == 1
        # A host alone is known by whichever of its places had the list.
        for _ in range(2):
            assert await census(server.url, *ALLOW, "--database", "sqlite:///host.db") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "FILE|URL"),
        (["none.txt"], "none.txt"),
        (["list.txt", "--format", "xml"], "--format"),
        (["list.txt", "--timeout", "0"], "--timeout"),
        (["probe.yml", "--timeout", "5"], "--timeout"),
        (["list.yaml", "--allow-network", "127.0.0.0/8"], "list.yaml"),
        (["sqlite:///a.db", "--timeout", "5"], "--timeout"),
        (["list.txt", "--contact", "me"], "contact"),
        (["list.txt", "--allow-network", "all"], "network"),
        (["list.txt", "--output", "list.txt"], "--output"),
        (["list.txt", "--no-crawl"], "list.db"),
        (["sqlite:///none.db"], "none.db"),
        (["mysql://a/b"], "LIST: "),
        (["probe.yml", "--contact", "mailto:a@agent.example"], "--contact"),
        (["ftp://a.example/list"], "list"),
        (["sqlite:///a.db", "--registry", "http://127.0.0.1:1"], "--registry"),
        (["--registry", "http://127.0.0.1:1"], "--key-file"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    (tmp_path / "list.txt").write_text("https://agent.example\n")
    (tmp_path / "probe.yml").write_text(DEFINITION)
    assert main(["census", *arguments]) == 3
    complaint = capsys.readouterr().err
    assert message in complaint
    assert len(problems_in(complaint)) == 1


@pytest.mark.parametrize("body", [b'{"neither": "fish nor fowl"}', bytes(range(256)), b""])
def test_unreadable_list_gives_no_census_and_no_files(
    body: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "list.txt").write_bytes(body)
    assert main(["census", "list.txt"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "list.txt: not read" in shown.err
    assert [file.name for file in tmp_path.iterdir()] == ["list.txt"]


async def test_interrupt_before_the_list_was_read_reports_no_results(tmp_path: Path) -> None:
    async with serving({"/list.txt": silence}) as server:
        with PreloadedProcess(
            [PROGRAM, "census", f"{server.url}/list.txt", *ALLOW], stdout=PIPE, stderr=PIPE, cwd=tmp_path
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            output = b""
            while b": reading " not in output:
                piece = await asyncio.to_thread(os.read, process.stderr.fileno(), 65_536)
                assert piece, output
                output += piece
            process.send_signal(signal.SIGINT)
            output += await asyncio.to_thread(process.stderr.read)
            out = process.stdout.read()
            code = process.wait(PATIENCE_SECONDS)
    assert (code, out) == (4, b""), output
    assert output.splitlines()[-1].startswith(b"some targets were not probed:")
    assert not await asyncio.to_thread(os.listdir, tmp_path)


async def test_list_that_becomes_unreadable_is_reported_with_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with mixed_directory(tmp_path):
        assert await census("agents.txt", *ALLOW, "--json") == 0
        assert json.loads(capsys.readouterr().out)["not_read"] == []
        (tmp_path / "agents.txt").write_text("")
        assert await census("agents.txt", *ALLOW) == 5
        lines = capsys.readouterr().out.splitlines()[2].partition(". ")[2]
        assert lines.startswith("agents.txt could not be read: ")
        assert await census("agents.txt", *ALLOW, "--json") == 5
        counted = json.loads(capsys.readouterr().out)
        assert (counted["not_read"], counted["listed"]) == (["agents.txt"], 6)
        assert list(Draft202012Validator(SCHEMA).iter_errors(counted)) == []
        # A later reader learns it too, in every format.
        assert await census("agents.db", "--output", "report") == 0
        assert lines in capsys.readouterr().out
        for file in ("census.md", "census.html"):
            assert lines in (tmp_path / "report" / file).read_text()
        assert json.loads((tmp_path / "report/census.json").read_text())["not_read"] == ["agents.txt"]
        assert "directories,agents.txt,not_read,1" in (tmp_path / "report/census.csv").read_text()
        # Once it can be read again, the next census reports nothing.
        (tmp_path / "agents.txt").write_text("http://127.0.0.1:9/\n")
        assert await census("agents.txt", *ALLOW, "--json") == 0
        assert json.loads(capsys.readouterr().out)["not_read"] == []


@pytest.mark.parametrize(
    ("listed", "options", "code"),
    [
        ("https://agent.example", (), 3),
        ("http://93.184.215.14/", ("--allow-network", "127.0.0.0/8"), 3),
        ("http://127.0.0.1:9/", (), 0),
        ("http://localhost:9/", ("--allow-network", "127.0.0.0/8"), 0),
        ("https://agent.example", ("--no-crawl",), 3),
    ],
)
def test_census_of_public_addresses_requires_contact(
    listed: str, options: tuple[str, ...], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "list.txt").write_text(f"http://127.0.0.1:9/one\n{listed}\n")
    assert main(["census", "list.txt", *options]) == code
    refused = code == 3 and "--no-crawl" not in options
    assert ("--contact: expected" in capsys.readouterr().err) is refused
    assert not (refused and (tmp_path / "list.db").exists())


async def test_census_of_public_addresses_sends_no_request_without_contact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving({}) as server:
        (tmp_path / "list.txt").write_text(f"{server.url}/\nagent.example\n")
        assert await census("list.txt", *ALLOW) == 3
        assert "mailto:you@example.org" in capsys.readouterr().err
        assert server.heads == []


async def test_local_directory_of_public_agents_is_not_probed_without_contact(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serving({"/list.txt": answer(200, b"https://agent.example\n")}) as server:
        assert await census(f"{server.url}/list.txt", *ALLOW) == 1
        assert "https://agent.example/ is public" in capsys.readouterr().err


def test_existing_database_is_kept_if_its_list_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("http://127.0.0.1:9/\n")
    assert main(["census", "list.txt"]) == 0
    (tmp_path / "list.txt").write_bytes(bytes(range(256)))
    main(["census", "list.txt"])
    (tmp_path / "empty.db").touch()
    (tmp_path / "empty.db.crawl").touch()
    assert main(["census", "list.txt", "--database", "sqlite:///empty.db"]) == 1
    names = {file.name for file in tmp_path.iterdir()}
    assert names >= {"list.txt", "list.db", "list.db.crawl", "empty.db", "empty.db.crawl"}
    assert main(["census", "list.db"]) == 0


def test_database_without_write_permission_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "50%? list.txt").write_text("http://127.0.0.1:9/\n")
    assert main(["census", "50%? list.txt", *ALLOW, "--database", "sqlite:///sealed.db"]) == 0
    (tmp_path / "sealed.db").rename(tmp_path / "50% sealed.db")
    may = os.access
    # Root may write whatever its mode, and the tests may be root's.
    monkeypatch.setattr(os, "access", lambda file, mode, **how: not mode & os.W_OK and may(file, mode, **how))
    before = sorted(file.name for file in tmp_path.iterdir())
    capsys.readouterr()
    assert main(["census", "50% sealed.db"]) == 0
    assert "0 of 1 measured target" in capsys.readouterr().out
    assert main(["targets", "list", "--database", "sqlite:///50% sealed.db", "--csv"]) == 0
    assert "refused" in capsys.readouterr().out
    assert main(["directories", "list", "--database", "sqlite:///50% sealed.db"]) == 0
    assert "50-list.txt" in capsys.readouterr().out
    assert sorted(file.name for file in tmp_path.iterdir()) == before
    # Writers learn why writing fails.
    assert main(["census", "50%? list.txt", *ALLOW, "--database", "sqlite:///50% sealed.db"]) == 3
    assert "50% sealed.db" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("closed", "message"),
    [
        ("agents.db", "agents.db'"),
        ("agents.db-wal", "in agents.db-wal "),
        ("agents.db-shm", "in agents.db-shm "),
    ],
)
def test_database_file_without_read_permission_is_named(
    closed: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "agents.txt").write_text("http://127.0.0.1:9/\n")
    assert main(["census", "agents.txt", *ALLOW]) == 0
    (tmp_path / "agents.db-wal").write_bytes(b"the latest changes")
    may = os.access

    def may_look(file: str | Path, mode: int, **how: bool) -> bool:
        return not mode & os.W_OK and Path(file).name != closed and may(file, mode, **how)

    monkeypatch.setattr(os, "access", may_look)
    assert main(["census", "agents.db", "--no-crawl"]) == 3
    assert message in capsys.readouterr().err


def test_file_without_read_permission_is_refused_as_list_and_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agents.db").write_text("http://127.0.0.1:9/\n")

    def closed(_file: Path, *_how: object) -> None:
        # Root may read whatever its mode, and the tests may be root's.
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", closed)
        assert main(["census", "agents.db"]) == 3
    output = capsys.readouterr().err
    assert (output.startswith("lifesign: FILE|URL: "), "(Permission denied)" in output) == (True, True)


def test_disk_full_before_the_list_is_read_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agents.txt").write_text("http://127.0.0.1:9/\n")
    with mounted(tmp_path / "small", "size=100k") as small:
        assert main(["census", "agents.txt", *ALLOW, "--database", "sqlite:///small/agents.db"]) == 2
        assert "disk is full" in capsys.readouterr().err
        assert list(small.iterdir()) == []


@pytest.mark.fault
async def test_full_disk_ends_a_pass_and_the_same_command_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process_module, "DATABASE_PATIENCE_SECONDS", 1.0)
    with mounted(tmp_path / "small", "size=8m") as small:

        async def filling(writer: asyncio.StreamWriter, head: str) -> None:
            fill(small)
            await answer(404)(writer, head)

        async with serving({CARD_PATH: filling}) as server:
            (tmp_path / "agents.txt").write_text("".join(f"{server.url}/{n}\n" for n in range(3)))
            command = ("agents.txt", *ALLOW, "--database", "sqlite:///small/agents.db")
            assert await census(*command) == 1
            output = capsys.readouterr()
            assert output.out == ""
            assert " for 1 s" in output.err
            assert "disk is full" in output.err
            with closing(sqlite3.connect("small/agents.db")) as database:
                assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            server.replies[CARD_PATH] = answer(404)
            (small / "filling").unlink()
            assert await census(*command) == 0
            output = capsys.readouterr()
            assert "continuing the pass" in output.err
            assert "\n0 of 3 " in output.out


def test_foreign_database_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.db").write_bytes(b"SQLite format 3\0" + bytes(4080))
    assert main(["census", "other.db"]) == 2
    assert capsys.readouterr().err.count("\n") >= 1


async def test_control_characters_in_a_list_name_are_replaced_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "agents\x1b[31m.txt"
    tmp_path.joinpath(name).write_text("http://127.0.0.1:9/\n")
    assert await census(name, *ALLOW) == 0
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert "refused" in shown.out


async def test_private_network_is_refused_with_the_option_that_allows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.joinpath("agents.txt").write_text("http://127.0.0.1:9/\n")
    assert await census("agents.txt") == 0
    assert "--allow-network" in capsys.readouterr().err


@pytest.mark.parametrize("database", [(), ("--database", "sqlite:///./agents.db"), ("--no-crawl",)])
def test_list_is_not_mistaken_for_a_database(
    database: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.joinpath("agents.db").write_text("http://127.0.0.1:9/\n")
    assert main(["census", "agents.db", *database]) == 3
    output = capsys.readouterr().err
    assert "--database sqlite:///results.db" in output
    assert tmp_path.joinpath("agents.db").read_text() == "http://127.0.0.1:9/\n"
    assert [file.name for file in tmp_path.iterdir()] == ["agents.db"]


async def test_list_named_like_a_database_works_with_a_separate_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.joinpath("agents.db").write_text("http://127.0.0.1:9/\n")
    assert await census("agents.db", *ALLOW, "--database", "sqlite:///results.db") == 0
    assert "refused" in capsys.readouterr().out
