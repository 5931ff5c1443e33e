"""Commands and examples of the documentation can be used as written."""

import ast
import asyncio
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from lifesign.cli import application
from lifesign.cli.options.registry_access import read_key
from lifesign.client.environment_variables import KEY_VARIABLE
from lifesign.crawl.contact_rule import require_contact
from lifesign.dashboard.errors import UnconfirmedForm, UnknownHost
from lifesign.domain.events.database_marker import Mismatch
from lifesign.domain.tasks.lease import TTL_SECONDS
from lifesign.errors import InvalidValue
from lifesign.prober.definition.file import read_definition_file
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.definition.target_settings import TargetSettings
from lifesign.prober.worker.claims import RENEW_RATIO, takeover_s
from lifesign.registry import run_server
from lifesign.registry.errors import UnknownKey
from lifesign.registry.settings import RegistrySettings
from lifesign.serving.errors import CannotListen
from lifesign.storage.engine.database import read_url
from lifesign.storage.errors import DatabaseInUse, SchemaOutdated, SchemaUnknown

REPOSITORY = Path(__file__).parents[1]
DOCUMENTS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
DEFINITIONS = sorted((REPOSITORY / "probes").glob("*.yml"))
# Commands in blocks of shell, after a prompt, in backticks, and in comments of a definition.
TYPED = re.compile(r"^(?:\$ |#  +|)((?:LIFESIGN_KEY=\S+ )?lifesign .+)$|`(lifesign [^`]+)`", re.MULTILINE)
# The server's own description.
SAID = "lifesign registry at"
COMMANDS: Any = typer.main.get_command(application._application)


def name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


def typed(document: Path) -> list[list[str]]:
    """The words of each command, without a comment at its end."""
    lines = (block or inline for block, inline in TYPED.findall(document.read_text()))
    commands = [shlex.split(line, comments=True) for line in lines if not line.startswith(SAID)]
    return [words[words.index("lifesign") + 1 :] for words in commands]


def fault_in(words: list[str]) -> str | None:
    """Return the missing part of a command: the command itself, its subcommand or an option."""
    command = COMMANDS
    while getattr(command, "commands", None) and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return words[0]
        command, words = command.commands[words[0]], words[1:]
    options = [(*parameter.opts, *parameter.secondary_opts) for parameter in command.params]
    known = {option for names in options for option in names}
    known |= {"--help", "-h"}
    # The part after the two dashes belongs to another program.
    words = words[: words.index("--")] if "--" in words else words
    given = [word.partition("=")[0] for word in words if word.startswith("-")]
    return next((option for option in given if option not in known), None)


@pytest.mark.parametrize("document", [*DOCUMENTS, *DEFINITIONS], ids=name)
def test_every_command_and_option_exists(document: Path) -> None:
    assert [words for words in typed(document) if fault_in(words) is not None] == []


def test_crawl_examples_name_a_contact() -> None:
    helped = (REPOSITORY / "docs" / "reference" / "cli.md").read_text()
    shown = [shlex.split(line) for line in re.findall(r"^  lifesign (census .+)$", helped, re.MULTILINE)]
    shown += [words for document in DOCUMENTS for words in typed(document) if words[:1] == ["census"]]
    lists = [words for words in shown if len(words) > 1 and words[1].endswith((".txt", ".json"))]
    assert len(lists) >= 8
    assert [words for words in lists if not {"--contact", "--allow-network"} & set(words)] == []


def texts_said(program: Path) -> Iterator[str]:
    """Yield a pattern for each line that a demo says: each value in the line stands for any text."""
    for node in ast.walk(ast.parse(program.read_text())):
        match node:
            case ast.Call(func=ast.Name("say"), args=[ast.Constant(str(text))]):
                yield re.escape(text)
            case ast.Call(func=ast.Name("say"), args=[ast.JoinedStr(parts)]):
                yield "".join(
                    re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in parts
                )


def test_readme_shows_lines_that_the_demos_print() -> None:
    programs = sorted((REPOSITORY / "docs" / "examples").glob("*_demo.py"))
    said = [re.compile(pattern) for program in programs for pattern in texts_said(program)]
    readme = (REPOSITORY / "README.md").read_text()
    fenced = re.findall(r"^```\w*\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    shown = [block for block in fenced if "is killed (SIGKILL)" in block]
    assert len(shown) == 2
    lines = [re.sub(r"^ +[\d.]+ s +", "", line) for block in shown for line in block.splitlines()]
    assert [line for line in lines if not any(pattern.fullmatch(line) for pattern in said)] == []


def test_documented_commands_exist() -> None:
    assert len(typed(REPOSITORY / "README.md")) >= 15
    assert len(typed(REPOSITORY / "docs" / "prober.md")) >= 12
    assert fault_in(["crawl", "census.yml", "--twice"]) == "--twice"
    assert fault_in(["keys", "lend"]) == "lend"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_documented_api_paths_exist(document: Path) -> None:
    paths = json.loads((REPOSITORY / "schemas" / "openapi.json").read_text())["paths"]
    named = re.findall(r"/api/v1/[\w/{}-]+", document.read_text())
    shapes = {re.sub(r"\{\w+\}", "{}", path) for path in paths}
    assert [path for path in named if re.sub(r"\{\w+\}", "{}", path.rstrip("/")) not in shapes] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_python_blocks_of_the_docs_compile(document: Path) -> None:
    for number, block in enumerate(blocks(document, "python")):
        compile(block, f"{name(document)}, block {number}", "exec")


def test_documented_probe_definition_is_valid(tmp_path: Path) -> None:
    (shown,) = blocks(REPOSITORY / "docs" / "prober.md", "yaml")
    (tmp_path / "census.yml").write_text(shown)
    (tmp_path / "opted-out.txt").write_text("opted-out.example\n")
    (tmp_path / "agents.txt").write_text("agent.example\n")
    definition = read_definition_file(tmp_path / "census.yml")
    assert definition.user_agent in shown.replace("mailto:...", definition.contact or "")


def printed_messages(tmp_path: Path) -> Iterator[str]:
    """Yield messages that a server or a command prints."""
    yield str(CannotListen("127.0.0.1", 8440, "Address already in use"))
    yield str(SchemaOutdated("0001", "0002"))
    yield str(SchemaUnknown("0002", "0001"))
    yield from Mismatch
    yield str(DatabaseInUse("sqlite:///registry.db"))
    yield str(UnknownKey())
    yield str(UnknownHost("registry.example"))
    yield str(UnconfirmedForm(has_secret=True))
    with pytest.raises(InvalidValue) as refused:
        read_url("postgresql://u:a@b@host/db")
    yield str(refused.value)
    no_directory = tmp_path / "file"
    no_directory.touch()
    with pytest.raises(InvalidValue) as refused:
        run_server.check(
            RegistrySettings(state_dir=no_directory), run_server.Listening(host="127.0.0.1", port=8440)
        )
    yield str(refused.value)
    target = TargetSettings(url="https://agent.example/")
    with pytest.raises(InvalidValue) as refused:
        asyncio.run(require_contact(ProbeDefinition(name="one", targets=(target,))))
    yield str(refused.value)
    with pytest.raises(InvalidValue) as refused:
        read_key(None)
    yield str(refused.value)


def test_troubleshooting_quotes_messages_as_they_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    text = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
    table = text.partition("| message | what to do |\n")[2].partition("\n\n")[0]
    cells = [row.split(" | ")[0] for row in table.splitlines()]
    # A code in brackets is part of the answer. A name of an option replaces the name of its setting.
    quoted = [
        quote.removeprefix("HTTP 401: ").partition(": expected ")[2] or quote.removeprefix("HTTP 401: ")
        for cell in cells
        for quote in re.findall(r"`([^`(]+)`", cell)
    ]
    printed = [*printed_messages(tmp_path)]
    assert len(quoted) >= 12
    assert [quote for quote in quoted if not any(quote in message for message in printed)] == []


def test_operators_read_how_long_the_replacement_of_a_lost_prober_takes() -> None:
    # The sentence may be wrapped.
    text = " ".join((REPOSITORY / "docs" / "operating.md").read_text().split())
    promised = re.search(
        r"within (\d+) s: its leases end after (\d+) s, and the others renew theirs every (\d+) s", text
    )
    assert promised is not None
    assert [int(each) for each in promised.groups()] == [
        round(takeover_s(TTL_SECONDS)),
        TTL_SECONDS,
        round(TTL_SECONDS * RENEW_RATIO),
    ]


def test_readme_is_short_and_shows_commands_and_picture_first() -> None:
    lines = (REPOSITORY / "README.md").read_text().splitlines()
    assert len(lines) <= 250
    first = "\n".join(lines[:50])
    assert "](docs/dashboard.png)" in first
    assert {"make demo", "make test"} <= {" ".join(line.split()[:2]) for line in lines[:50]}
    assert first.count("```console\n$ lifesign ") >= 3


def test_examples_of_tool_calls_wait_for_slow_answers_and_keep_their_token_from_proxies() -> None:
    clients = [
        call
        for file in [*DOCUMENTS, *sorted((REPOSITORY / "docs").rglob("*.py"))]
        for call in re.findall(r"httpx2\.AsyncClient\(\s*(headers.+?)\) as", file.read_text(), re.DOTALL)
    ]
    assert len(clients) == 3
    # The default of httpx2 is 5 s.
    assert [call for call in clients if "timeout=" not in call or "trust_env=False" not in call] == []
