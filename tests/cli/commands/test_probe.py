import asyncio
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.support.agent_check import card, document
from tests.support.complaints import problems_in
from tests.support.hostile_server import CARD_PATH, HEALTH_PATH, Reply, answer, as_json, serving
from tests.support.servers import free_port

from lifesign.cli import main
from lifesign.cli.commands import probe as module
from lifesign.cli.commands.probe import exit_code

ALLOW = ("--allow-network", "127.0.0.0/8")
EVIL = "Evil\x1b[2J\u202e\r\nagent"
SCHEMA = json.loads((Path(__file__).parents[3] / "schemas" / "observation.schema.json").read_text())


async def run(replies: dict[str, Reply], *options: str, path: str = "") -> tuple[int, str]:
    async with serving(replies) as server:
        # The command opens a loop of its own.
        return await asyncio.to_thread(main, ["probe", server.url + path, *ALLOW, *options]), server.url


def agent(url: str = "http://127.0.0.1/", **members: Any) -> dict[str, Reply]:
    return {CARD_PATH: as_json(card(url=url, **members)), HEALTH_PATH: as_json(document("degraded"))}


async def test_an_agent_is_shown_layer_by_layer(capsys: pytest.CaptureFixture[str]) -> None:
    ended, url = await run(agent())
    lines = capsys.readouterr().out.splitlines()
    assert ended == 0
    assert lines[0] == f"{url}/"
    assert lines[1].startswith("alive: a card, a health document; its interface: refused (")
    rows = {line.split()[0]: line.split() for line in lines[3:] if line}
    assert rows["card"][1:3] == ["ok", "200"]
    assert rows["health"][1:4] == ["document", "ok", "200"]
    assert rows["reports"][1].startswith("degraded")


async def test_document_from_the_future_has_no_positive_age(capsys: pytest.CaptureFixture[str]) -> None:
    ahead = (datetime.now(UTC) + timedelta(days=10, hours=1, minutes=30)).isoformat(timespec="milliseconds")
    await run({HEALTH_PATH: as_json(document(timestamp=ahead))})
    assert "10 d 1 h in the future" in capsys.readouterr().out


async def test_target_with_only_a_card_is_reported_so(capsys: pytest.CaptureFixture[str]) -> None:
    replies = {CARD_PATH: as_json(card(url=f"http://127.0.0.1:{free_port()}/"))}
    ended, _ = await run(replies)
    assert ended == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("alive: a card only; its interface: refused (")


async def test_absent_agent_is_not_alive(capsys: pytest.CaptureFixture[str]) -> None:
    ended = await asyncio.to_thread(main, ["probe", f"http://127.0.0.1:{free_port()}", *ALLOW])
    shown = capsys.readouterr().out
    assert ended == 1
    assert shown.splitlines()[1].startswith("not alive: ")
    assert "refused" in shown


async def test_target_that_must_not_be_requested_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(agent()) as server:
        ended = await asyncio.to_thread(main, ["probe", server.url])
    assert ended == 2
    assert capsys.readouterr().out.splitlines()[1].startswith("unknown: ")
    assert server.heads == []


@pytest.mark.parametrize(
    ("typed", "allowed", "expected"),
    [
        ("http://127.0.0.1:{port}", (), ["--allow-network 127.0.0.0/8"]),
        ("localhost:{port}/mcp", (), ["--allow-network 127.0.0.0/8", "http://localhost:{port}/mcp"]),
        ("127.0.0.1:{port}", ALLOW, ["http://127.0.0.1:{port}"]),
        ("http://10.1.2.3", (), ["--allow-network 10.0.0.0/8"]),
        ("http://127.0.0.1:{port}", ALLOW, []),
    ],
)
async def test_address_that_is_not_contacted_as_typed_has_a_hint(
    typed: str, allowed: tuple[str, ...], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving({}) as server:
        url = typed.format(port=server.port)
        await asyncio.to_thread(main, ["probe", url, *allowed, "--timeout", "2s"])
        expected = [part.format(port=server.port) for part in expected]
    lines = capsys.readouterr().out.splitlines()
    first = next((at for at, line in enumerate(lines) if line.startswith("hint ")), len(lines))
    assert len(lines[first:]) == len(expected)
    assert all(line.endswith(part) for line, part in zip(lines[first:], expected, strict=True))


async def test_blocked_address_of_a_definition_has_a_hint_for_the_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "own.yml"
    file.write_text("name: own\ntargets: [http://10.1.2.3]\n")
    await asyncio.to_thread(main, ["probe", "--definition", str(file)])
    (hint,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("hint ")]
    assert hint.endswith(f"10.0.0.0/8 to networks.allow of {file}")


async def test_mcp_server_is_probed_with_the_kind_that_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = {"supportedVersions": ["2026-07-28"], "capabilities": {}}
    replies = {"/mcp": as_json({"jsonrpc": "2.0", "id": 1, "result": result})}
    async with serving(replies) as server:
        url, file = f"{server.url}/mcp", tmp_path / "probe.yml"
        asked = {"card": True, "health": False}
        target = {"url": url, "kind": "a2a", "ask": asked}
        file.write_text(json.dumps({"name": "one", "contact": "mailto:a@agent.example", "targets": [target]}))
        for options in ((), ("--definition", str(file))):
            command = ["probe", url, *ALLOW, "--kind", "mcp", "--json", *options]
            assert await asyncio.to_thread(main, command) == 0
            [shown] = json.loads(capsys.readouterr().out)["targets"]
            assert shown["observation"]["transport"]["result"] == "ok"
    assert CARD_PATH not in server.paths


def test_unknown_kind_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "https://agent.example", "--kind", "ftp"]) == 3
    assert "--kind" in capsys.readouterr().err


async def test_gated_agent_is_not_reported_as_down(capsys: pytest.CaptureFixture[str]) -> None:
    ended, _ = await run({CARD_PATH: answer(401), HEALTH_PATH: answer(401)})
    assert ended == 0
    shown = capsys.readouterr().out
    assert "requires credentials" in shown
    assert "--credential FILE" in shown.partition("\nhint ")[2]


@pytest.mark.parametrize("option", ["--definition", "--credential"])
async def test_login_of_an_origin_without_credential_has_a_hint_to_the_origin(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAB_TOKEN", "canary-5e8d21aa")
    name = "name: lab\ntargets: [https://lab.example]\n" if option == "--definition" else ""
    file = tmp_path / "lab.yml"
    async with serving({CARD_PATH: answer(401), HEALTH_PATH: answer(401)}) as server:
        origin = f"http://localhost:{server.port}"
        file.write_text(
            f"{name}credentials: [{{name: lab, origin: '{origin}', bearer: {{env: LAB_TOKEN}}}}]\n"
        )
        await asyncio.to_thread(main, ["probe", server.url, option, str(file), *ALLOW])
    (hint,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("hint ")]
    assert f"origin {server.url}" in hint


async def test_definition_is_no_file_for_the_option_credential(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lab.yml"
    file.write_text("name: lab\ntargets: [http://127.0.0.1:1]\ncredentials: []\n")
    assert await asyncio.to_thread(main, ["probe", "http://127.0.0.1:1", "--credential", str(file)]) == 3
    assert "hint: pass" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("groups", "code"),
    [
        (["alive"], 0),
        (["alive", "not_alive", "unknown"], 1),
        (["unknown", "alive"], 2),
        (["unknown", "not_alive"], 1),
    ],
)
def test_down_agents_outrank_unknown_agents(groups: list[str], code: int) -> None:
    assert exit_code(groups) == code


async def test_several_agents_are_shown_in_argument_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused = f"http://127.0.0.1:{free_port()}/"
    ended, url = await run(agent(), refused, "--json")
    shown = json.loads(capsys.readouterr().out)["targets"]
    assert ended == 1
    assert [(target["url"], target["group"], target["result"]) for target in shown] == [
        (f"{url}/", "alive", "ok"),
        (refused, "not_alive", "refused"),
    ]


async def test_json_fits_the_schema_of_observations(capsys: pytest.CaptureFixture[str]) -> None:
    await run(agent(), "--json")
    (target,) = json.loads(capsys.readouterr().out)["targets"]
    assert list(target) == ["url", "group", "result", "requests", "observation"]
    assert list(Draft202012Validator(SCHEMA).iter_errors(target["observation"])) == []


async def test_control_characters_from_the_probed_agent_are_replaced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    evil = {CARD_PATH: as_json(card(name=EVIL)), HEALTH_PATH: as_json(document(agent_id=EVIL))}
    for options in ([], ["--json"]):
        await run(evil, *options)
        shown = capsys.readouterr().out
        assert all(line.isprintable() for line in shown.split("\n"))


async def test_a_file_gives_a_credential_whose_secret_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAB_TOKEN", "canary-5e8d21aa")
    file = tmp_path / "lab.yml"
    async with serving({"/rpc": answer(403)}) as server:
        server.replies[CARD_PATH] = as_json(card(url=f"{server.url}/rpc"))
        file.write_text(f"credentials: [{{name: lab, origin: '{server.url}', bearer: {{env: LAB_TOKEN}}}}]\n")
        arguments = ["probe", server.url, *ALLOW, "--credential", str(file)]
        ended = await asyncio.to_thread(main, arguments)
        assert server.asked("/rpc")["authorization"] == "Bearer canary-5e8d21aa"
        shown = capsys.readouterr()
        assert ended == 0
        assert "credentials_rejected" in shown.out
        assert "credential lab" in shown.out
        assert "canary" not in shown.out + shown.err
        monkeypatch.delenv("LAB_TOKEN")
        assert await asyncio.to_thread(main, arguments) == 3
    assert "LAB_TOKEN" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "credentials: []\n", "name: x\n", "credentials: [{name: lab, bearer: canary-5e8d21aa}]\n"]
)
def test_a_file_without_a_usable_credential_is_refused(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lab.yml"
    file.write_text(text)
    assert main(["probe", "https://lab.example", "--credential", str(file)]) == 3
    assert main(["probe", "https://lab.example", "--credential", str(tmp_path / "none")]) == 3
    assert "canary" not in capsys.readouterr().err


async def test_probe_settings_are_read_from_a_definition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "probe.yml"
    file.write_text(
        "name: mine\n"
        "contact: mailto:me@agent.example\n"
        "targets: [https://not-asked.example]\n"
        "ask: {health: false, paths: [/ping]}\n"
        "networks: {allow: [127.0.0.0/8]}\n"
    )
    replies = {**agent(), "/ping": as_json({"status": "Healthy"})}
    async with serving(replies) as server:
        ended = await asyncio.to_thread(main, ["probe", server.url, "--definition", str(file)])
    shown = capsys.readouterr().out
    assert ended == 0
    assert "not-asked" not in shown
    assert "/ping" in shown
    assert HEALTH_PATH not in server.paths
    assert "mailto:me@agent.example" in server.asked(CARD_PATH)["user-agent"]


@pytest.mark.parametrize(
    ("path", "others", "is_warned"),
    [("", "", False), ("other", "", True), pytest.param("other", ", '{url}'", False, id="listed_without")],
)
async def test_assertions_of_other_urls_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, others: str, *, is_warned: bool
) -> None:
    file = tmp_path / "probe.yml"
    async with serving(agent()) as server:
        file.write_text(
            "name: mine\n"
            "contact: mailto:me@agent.example\n"
            f"targets: [{{url: '{server.url}/{path}', assertions: [{{of: card, status: 200}}]}}"
            f"{others.format(url=server.url)}]\n"
            "networks: {allow: [127.0.0.0/8]}\n"
        )
        assert await asyncio.to_thread(main, ["probe", server.url, "--definition", str(file)]) == 0
    shown = capsys.readouterr()
    assert ("card status" in shown.out) is (path == "")
    assert (f"{server.url}/other" in shown.err) is is_warned
    assert ("warning" in shown.err) is is_warned


async def test_targets_of_a_definition_are_probed_if_no_url_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "probe.yml"
    file.write_text("name: mine\ndirectories: [{file: probe.yml}]\n")
    assert await asyncio.to_thread(main, ["probe", "--definition", str(file)]) == 3
    assert f"hint: for the agents of its directories: lifesign crawl {file}" in capsys.readouterr().err
    async with serving(agent()) as server:
        text = (
            "name: mine\n"
            f"targets: ['{server.url}', '{server.url}/other']\n"
            "networks: {allow: [127.0.0.0/8]}\n"
        )
        file.write_text(text)
        read, write = os.pipe()
        os.write(write, text.encode())
        os.close(write)
        for place in (str(file), f"/dev/fd/{read}"):
            await asyncio.to_thread(main, ["probe", "--json", "--definition", place])
            probed = [target["url"] for target in json.loads(capsys.readouterr().out)["targets"]]
            assert probed == [f"{server.url}/", f"{server.url}/other"]
        os.close(read)


async def test_a_message_to_an_mcp_server_is_refused_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "probe.yml"
    async with serving({}) as server:
        file.write_text(
            "name: mine\n"
            "contact: mailto:me@agent.example\n"
            f"targets: [{{url: '{server.url}', kind: mcp}}]\n"
            "networks: {allow: [127.0.0.0/8]}\n"
        )
        for options in ([*ALLOW, "--kind", "mcp"], ["--definition", str(file)]):
            command = ["probe", server.url, "--message", "hi", *options]
            assert await asyncio.to_thread(main, command) == 3
            complaint = capsys.readouterr().err
            assert "--message" in complaint
            assert "\nhint: " in complaint
    assert server.heads == []


async def test_a_target_keeps_its_own_layers_and_a_message_is_added(tmp_path: Path) -> None:
    file = tmp_path / "probe.yml"
    async with serving({"/ping": as_json({"status": "Healthy"})}) as server:
        server.replies |= agent(f"{server.url}/a2a")
        file.write_text(
            "name: mine\n"
            "contact: mailto:me@agent.example\n"
            f"targets: [{{url: '{server.url}', ask: {{health: false, paths: [/ping]}}}}]\n"
            "ask: {paths: [/not-asked]}\n"
            "networks: {allow: [127.0.0.0/8]}\n"
        )
        await asyncio.to_thread(main, ["probe", server.url, "--definition", str(file), "--message", "hi"])
    assert "/ping" in server.paths
    assert not {"/not-asked", HEALTH_PATH} & set(server.paths)
    assert any(head.startswith("POST /a2a") for head in server.heads)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "URL"),
        (["http://{tenant}.example"], "URL"),
        (["ftp://agent.example"], "URL"),
        (["agent.example", "--timeout", "0"], "--timeout"),
        (["agent.example", "--timeout", "nan"], "--timeout"),
        (["agent.example", "--allow-network", "everything"], "lifesign: --allow-network: "),
        (["agent.example", "--message", ""], "lifesign: --message: "),
        (["agent.example", "--definition", "/not/there.yml"], "/not/there.yml"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", *arguments]) == 3
    complaint = capsys.readouterr().err
    assert message.lower() in complaint.lower()
    assert len(problems_in(complaint)) == 1


def test_too_many_urls_are_refused_with_a_hint_to_census(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "MAX_URLS", 1)
    assert main(["probe", "a.example", "b.example"]) == 3
    assert "lifesign census" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["exa_mple..com", f"{'a' * 64}.example", "256.1.1.1"])
def test_a_host_that_cannot_exist_is_refused(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", host]) == 3
    shown = capsys.readouterr()
    assert "URL: expected an agent's URL" in shown.err
    assert shown.out == "", "a request was sent"
