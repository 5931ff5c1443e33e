import re
from pathlib import Path

import pytest

from lifesign.adapter.errors import InvalidTools
from lifesign.adapter.tools.tools_file import ToolSecret
from lifesign.adapter.tools.tools_file_reader import read_upstreams, secret_of
from lifesign.domain.credentials.secret import MAX_SECRET_CHARS
from lifesign.errors import InvalidValue
from lifesign.filesystem.changeable_path import SYSTEMD_DIRECTORY

GOOD = """\
limits: {calls_at_once: 4, call_seconds: 60}
upstreams:
  search:
    command: [python3, search.py]
    directory: servers
    environment:
      SEARCH_KEY: {env: MY_KEY}
    tools:
      web_search: {usd_per_call: 0.01}
      research: {cost_in: search/cost, at_most: {usd: 2.5, tokens: 100000}}
  docs:
    url: https://docs.example/mcp
    headers:
      Authorization: {file: docs.key, prefix: "Bearer "}
    offer_all: true
    price: {tokens_per_call: 10}
    prefix: docs_
"""
ENVIRONMENT = {"MY_KEY": "s3cret"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "docs.key").write_text("t0ken\n")
    return tmp_path


def reading(directory: Path, text: str) -> str:
    """Return the reason for which a file is refused."""
    file = directory / "tools.yml"
    file.write_text(text)
    with pytest.raises(InvalidTools) as refused:
        read_upstreams(file, ENVIRONMENT)
    assert str(refused.value).startswith(f"{file}: ")
    return str(refused.value).removeprefix(f"{file}: ")


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_warning_names_a_tools_file_that_others_can_change(
    directory: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    file = directory / "tools.yml"
    file.write_text(GOOD)
    file.chmod(mode)
    read_upstreams(file, ENVIRONMENT)
    assert any(str(file) in message for message in caplog.messages) is (mode == 0o666)


def test_tools_file_configures_servers_tools_and_prices(directory: Path) -> None:
    file = directory / "tools.yml"
    file.write_text(GOOD)
    read = read_upstreams(file, ENVIRONMENT)
    search, docs = read.upstreams["search"], read.upstreams["docs"]
    assert (read.limits.calls_at_once, read.limits.answer_bytes) == (4, 1_048_576)
    assert search.directory == directory / "servers"
    assert search.tools["web_search"].most().model_dump() == {"tokens": 0, "usd": 0.01}
    assert search.tools["research"].most().model_dump() == {"tokens": 100_000, "usd": 2.5}
    assert read.price_of("search", "other") is None
    assert read.price_of("docs", "any") == docs.price
    assert read.names_for("docs", "find") == ("docs_find", "docs_find")
    assert secret_of(search.environment["SEARCH_KEY"], ENVIRONMENT) == "s3cret"
    assert secret_of(docs.headers["Authorization"], {}) == "Bearer t0ken"


@pytest.mark.parametrize(
    ("before", "after", "line", "message"),
    [
        ("{usd_per_call: 0.01}", "{}", 9, "search/tools/web_search: expected a price: usd_per"),
        (
            "{usd_per_call: 0.01}",
            "{usd_per_cal: 1}",
            9,
            "search/tools/web_search/usd_per_cal: no such key; expected one of usd_per_call",
        ),
        (
            "{usd_per_call: 0.01}",
            "{usd_per_call: -1}",
            9,
            "search/tools/web_search/usd_per_call: expected at least 0",
        ),
        ("{usd_per_call: 0.01}", "{usd_per_call: .nan}", 9, "search/tools/web_search/usd_per_call: expected"),
        (
            "{usd_per_call: 0.01}",
            "{usd_per_call: 0.0000001}",
            9,
            "search/tools/web_search/usd_per_call: expected at most 6 decimals",
        ),
        (
            "{usd_per_call: 0.01}",
            '{usd_per_call: "0.01"}',
            9,
            "search/tools/web_search/usd_per_call: expected a number",
        ),
        (
            "{usd_per_call: 0.01}",
            "{usd_per_call: 1e300}",
            9,
            "search/tools/web_search/usd_per_call: expected at most 100000000",
        ),
        (
            "{usd_per_call: 0.01}",
            "{usd_per_call: 1.0e+300}",
            9,
            "search/tools/web_search/usd_per_call: expected at most 100000000",
        ),
        ("[python3,", "[no_such_program,", 4, "search/command/0: .*: no_such_program"),
        ("[python3,", "[./search.py,", 4, r"search/command/0: .*: \./search\.py"),
        (
            ", at_most: {usd: 2.5, tokens: 100000}",
            "",
            10,
            "search/tools/research: expected cost_in and at_most together",
        ),
        (
            "at_most: {usd: 2.5, tokens: 100000}",
            "at_most: {usd: 0}",
            10,
            "search/tools/research: expected at_most with tokens, usd or both above 0",
        ),
        ("calls_at_once: 4", "calls_at_once: 0", 1, "/limits/calls_at_once: expected at least 1"),
        ("url: https://docs", "url: http://docs", 11, "docs: expected an https URL"),
        (
            "url: https://docs.example/mcp",
            "url: https://u:p@docs.example/",
            12,
            "docs/url: .*URL",
        ),
        ("url: https://docs.example/mcp", "command: [a]", 11, "docs: expected headers"),
        ("    command: [python3, search.py]\n", "", 3, "search: .*command and url"),
        ("    offer_all: true\n", "", 11, "docs: expected offer_all and price together"),
        ("    price: {tokens_per_call: 10}\n", "", 11, "docs: expected offer_all and price together"),
        ("MY_KEY}", "NO_KEY}", 7, "search/environment/SEARCH_KEY/env: .* NO_KEY "),
        ("docs.key", "no.key", 14, "docs/headers/Authorization/file: .*No such"),
        ("{env: MY_KEY}", "{}", 7, "search/environment/SEARCH_KEY: .*env"),
        ("{env: MY_KEY}", "s3cret", 7, "search/environment/SEARCH_KEY: expected a mapping"),
        ("  docs:", "  Docs:", 11, "/upstreams: expected 1 to 32 lower-case letters"),
        ("SEARCH_KEY: {env: MY_KEY}", "sk-s3cret: {env: MY_KEY}", 7, "search/environment: .*variable"),
        ("Authorization: {", "'X-Key: s3cret': {", 14, "docs/headers: .*header"),
        ("upstreams:", "upstream:", 1, "/upstreams: .*key"),
        (GOOD, "[]", 1, "key upstreams"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_errors_name_their_line(directory: Path, before: str, after: str, line: int, message: str) -> None:
    assert before in GOOD
    refused = reading(directory, GOOD.replace(before, after, 1))
    assert f"line {line}: " in refused
    assert re.search(message, refused)
    assert "s3cret" not in refused


def test_program_is_found_in_its_directory_with_its_interpreter(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory)
    file, program = directory / "tools.yml", directory / "search.py"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    file.write_text("upstreams:\n  a: {command: [./search.py], tools: {find: {usd_per_call: 0}}}\n")
    assert read_upstreams(file).upstreams["a"].command == ("./search.py",)
    program.write_text("#!/no/such/python\n")
    with pytest.raises(InvalidTools, match="'/no/such/python'"):
        read_upstreams(file)


def test_tool_name_that_collides_is_refused(directory: Path) -> None:
    text = """\
upstreams:
  a:
    url: https://a.example/
    tools: {a_report_progress: {usd_per_call: 0}, report_progress: {usd_per_call: 0}}
"""
    result = reading(directory, text)
    assert result.startswith(
        "line 4: /upstreams/a/tools/report_progress: expected a name that is free: report_"
    )


def test_a_secret_is_one_line_of_ascii_and_never_shown(directory: Path) -> None:
    (directory / "docs.key").write_text("two\nlines")
    result = reading(directory, GOOD)
    assert "docs/headers/Authorization" in result
    assert "two" not in result
    (directory / "docs.key").write_bytes(b"x" * 9_000)
    assert "8192 bytes" in reading(directory, GOOD)
    (directory / "docs.key").write_text("\n")
    assert "not empty" in reading(directory, GOOD)
    with pytest.raises(InvalidValue, match=r" X to be set$") as refused:
        secret_of(ToolSecret(env="X"), {})
    assert refused.value.name == "env"
    long = "k" * MAX_SECRET_CHARS
    assert secret_of(ToolSecret(env="X"), {"X": long}) == long
    with pytest.raises(InvalidValue) as refused:
        secret_of(ToolSecret(env="X", prefix="Bearer "), {"X": long})
    assert refused.value.name == "secret"
    token = "ghp_abcdefghijklmnopqrstuvwxyz"
    for place in (ToolSecret(env=token), ToolSecret(systemd=token), ToolSecret(file=directory / token)):
        with pytest.raises(InvalidValue) as refused:
            secret_of(place, {})
        assert token not in str(refused.value)


def test_a_secret_may_be_a_credential_of_systemd(directory: Path) -> None:
    place = ToolSecret(systemd="docs.key", prefix="Bearer ")
    assert secret_of(place, {SYSTEMD_DIRECTORY: str(directory)}) == "Bearer t0ken"
    with pytest.raises(InvalidValue) as refused:
        secret_of(place, {})
    assert refused.value.name == "systemd"


def test_secret_readable_by_others_is_used_with_one_warning(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (directory / "docs.key").chmod(0o640)
    for _ in range(2):
        assert secret_of(ToolSecret(file=directory / "docs.key"), {}) == "t0ken"
    file = directory / "docs.key"
    (record,) = caplog.records
    assert f" {file} " in record.getMessage()
    assert "0640" in record.getMessage()
    assert record.getMessage().endswith(f"chmod 600 {file}")


def test_program_with_a_slash_is_relative_to_its_directory(directory: Path) -> None:
    program = directory / "servers" / "search"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    file = directory / "tools.yml"
    file.write_text(GOOD.replace("[python3,", "[./search,"))
    assert read_upstreams(file, ENVIRONMENT).upstreams["search"].command == ("./search", "search.py")


def test_missing_tools_file_is_an_invalid_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="readable"):
        read_upstreams(tmp_path / "none.yml")
