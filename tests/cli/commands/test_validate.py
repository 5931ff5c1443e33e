import asyncio
import io
import json
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support import hostile_server as hostile
from tests.support.agent_check import SHORT_SECONDS, document
from tests.support.hostile_server import HEALTH_PATH, Reply, answer, as_json, redirect, serving
from tests.support.properties import examples

from lifesign.cli import main
from lifesign.domain.health.document_reader import MAX_DOCUMENT_BYTES

BROKEN = {"schema_version": "0.1.0", "agent_id": "a", "timestamp": "noon", "health": {"status": "fine"}}
ODD = document(health={"status": "healthy", "uptime_seconds": None})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "health.json"


async def validate_url(reply: Reply, path: str, *options: str) -> int:
    async with serving({HEALTH_PATH: reply, "/other": reply}) as server:
        return await asyncio.to_thread(main, ["validate", server.url + path, *options])


def test_valid_document_exits_with_0(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(json.dumps(document()))
    assert main(["validate", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: a valid health document\n"


def test_every_error_is_reported_with_its_place_and_section(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(json.dumps(BROKEN))
    assert main(["validate", str(file)]) == 1
    shown = capsys.readouterr().out
    assert "/timestamp: expected an RFC 3339 time" in shown
    assert "/health/status: " in shown
    assert "[draft 4.3]" in shown
    assert "2 faults" in shown


def test_findings_are_warnings_and_the_document_stays_valid(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(json.dumps(ODD))
    assert main(["validate", str(file)]) == 0
    assert "warning     /health/uptime_seconds" in capsys.readouterr().out


@pytest.mark.parametrize(("members", "code"), [(BROKEN, 1), (ODD, 0)])
def test_json_has_the_keys_that_help_describes(
    members: dict[str, object], code: int, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(json.dumps(members))
    assert main(["validate", "--json", str(file)]) == code
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == ["source", "is_valid", "error", "faults", "warnings"]
    assert shown["is_valid"] is (code == 0)
    assert shown["error"] is None
    (first, *_) = shown["faults"] + shown["warnings"]
    assert list(first) == ["name", "pointer", "message", "section"]


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given_text = io.TextIOWrapper(io.BytesIO(json.dumps(document()).encode()))
    monkeypatch.setattr(sys, "stdin", given_text)
    assert main(["validate", "-"]) == 0
    assert capsys.readouterr().out.startswith("-: ")


@pytest.mark.parametrize("source", ["/nonexistent", "/", "\x00", "evil\x1b[2J"])
def test_unreadable_input_is_reported(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", source]) == 3
    output = capsys.readouterr().err
    assert "cannot be read" in output
    assert output[:-1].isprintable()


def test_bare_host_or_missing_argument_is_reported_with_the_expected_form(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["validate", "agent.example"]) == 3
    output = capsys.readouterr().err
    assert output.startswith("agent.example: cannot be read")
    assert {"http://", "https://"} <= set(output.split())
    assert main(["validate", "me:hunter2@a.example"]) == 3
    assert capsys.readouterr().err.startswith("...@a.example: cannot be read")
    assert main(["validate", ""]) == 3
    assert capsys.readouterr().err.startswith("lifesign: FILE|URL|-: expected the path of a file, a URL")


def test_unreadable_input_is_reported_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--json", "/nonexistent"]) == 3
    assert "no such file" in json.loads(capsys.readouterr().out)["error"]


def test_oversized_file_is_refused_without_reading_it_completely(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with file.open("wb") as sparse:
        sparse.truncate(10 * 1024**4)
    assert main(["validate", str(file)]) == 1
    assert f"at most {MAX_DOCUMENT_BYTES} bytes" in capsys.readouterr().out


@pytest.mark.parametrize("path", ["", "/", HEALTH_PATH, "/other"])
async def test_url_is_read_at_its_path_else_at_the_well_known_path(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await validate_url(as_json(document()), path) == 0
    shown = capsys.readouterr().out
    assert "plain HTTP" in shown
    assert (path if len(path) > 1 else HEALTH_PATH) + ": " in shown


async def test_validate_follows_no_redirect_to_another_host(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving({HEALTH_PATH: as_json(document())}, host="127.0.0.2") as elsewhere:
        ended = await validate_url(redirect(elsewhere.url + HEALTH_PATH), "")
    assert (ended, elsewhere.heads) == (2, [])
    assert "redirected" in capsys.readouterr().err


async def test_a_wrong_content_type_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    reply = answer(200, json.dumps(document()).encode(), Content_Type="text/plain")
    assert await validate_url(reply, "") == 0
    assert "expected application/json; got text/plain [draft 4.1]" in capsys.readouterr().out


@pytest.mark.parametrize(
    "reply", [answer(404), answer(500), hostile.reset, hostile.endless_body, hostile.silence]
)
async def test_empty_answer_is_reported(reply: Reply, capsys: pytest.CaptureFixture[str]) -> None:
    assert await validate_url(reply, "", "--timeout", str(SHORT_SECONDS)) == 2
    assert "cannot be read" in capsys.readouterr().err


@settings(
    max_examples=examples(50),
    suppress_health_check=[*settings().suppress_health_check, HealthCheck.function_scoped_fixture],
)
@given(data=st.binary())
def test_any_bytes_are_validated_without_a_traceback(
    data: bytes, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(data)
    assert main(["validate", str(file)]) == 1
    assert all(line.isprintable() for line in capsys.readouterr().out.split("\n"))


def test_refused_connection_has_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "http://127.0.0.1:1/"]) == 2
    problem, hint = capsys.readouterr().err.splitlines()
    assert problem.startswith("http://127.0.0.1:1/")
    assert hint.startswith("hint: ")


def test_definition_that_is_no_document_has_a_hint(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "calc.yml"
    file.write_text("name: calc\n")
    assert main(["validate", str(file)]) == 1
    assert f"lifesign doctor --definition {file}" in capsys.readouterr().out
