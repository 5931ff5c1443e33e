"""The commands that test one credential, and log in with OAuth."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.hostile_server import Reply, answer, redirect, serving
from tests.support.servers import free_port

from lifesign.cli import main
from lifesign.cli.commands import credentials
from lifesign.cli.commands.credentials import EXIT_CODES
from lifesign.prober.probe.credential_trial import TrialVerdict

TOKEN = "canary-5e8d21aa"
FORM = "  - {{name: lab, origin: '{url}', bearer: {{env: LAB_TOKEN}}}}\n"


def behind_login(token: str = TOKEN, status: int = 200) -> Reply:
    """Answer 401 without the token, and echo the request otherwise."""

    async def reply(writer: asyncio.StreamWriter, head: str) -> None:
        is_admitted = f"Bearer {token}" in head
        await answer(status if is_admitted else 401, X_Echo=TOKEN)(writer, head)

    return reply


@asynccontextmanager
async def trying(
    directory: Path, reply: Reply, *options: str, form: str = FORM, name: str = "lab"
) -> AsyncIterator[int]:
    """Run the command against a server, and return its exit code."""
    async with serving({"/": reply}) as server:
        yield await run(directory, server.url, *options, form=form, name=name)


async def run(directory: Path, url: str, *options: str, form: str = FORM, name: str = "lab") -> int:
    file = directory / "lab.yml"
    file.write_text(
        "name: lab\ncontact: mailto:tests@agent.example\ntargets: [https://lab.example]\n"
        "networks: {allow: [127.0.0.0/8]}\ntimeouts: {total_seconds: 5}\ncredentials:\n"
        f"{form.format(url=url)}"
    )
    arguments = ["credentials", "test", name, "--definition", str(file), *options]
    return await asyncio.to_thread(main, arguments)


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_TOKEN", TOKEN)


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the printed JSON; the secret must not be in it."""
    printed = capsys.readouterr()
    assert "canary" not in printed.out + printed.err
    document: dict[str, Any] = json.loads(printed.out)
    return document


@pytest.mark.parametrize(
    ("reply", "verdict", "last"),
    [
        (behind_login(), "works", "ok"),
        (behind_login(status=405), "works", "ok"),
        (answer(200), "not_needed", "ok"),
        (answer(404), "unknown", "ok"),
        (answer(405), "unknown", "ok"),
        (behind_login("another-token"), "fault", "fault"),
        (answer(403), "fault", "fault"),
        (behind_login(status=500), "unknown", "unknown"),
        (redirect("https://elsewhere.example/"), "unknown", "unknown"),
    ],
)
async def test_credential_test_verdict_follows_the_answer(
    reply: Reply, verdict: str, last: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with trying(tmp_path, reply, "--json") as code:
        assert code == EXIT_CODES[verdict]
    document = shown(capsys)
    assert (document["credential"], document["method"], document["verdict"]) == ("lab", "bearer", verdict)
    assert [step["name"] for step in document["steps"]] == [
        "definition", "secret", "place", "address", "tls", "request_without", "request_with",
    ]  # fmt: skip
    results = [step["result"] for step in document["steps"]]
    assert (set(results[:-1]), results[-1]) == ({"ok"}, last)
    assert ("hint" in document) is (verdict != "works")
    texts = [step["text"] for step in document["steps"]]
    assert all(text.count("HTTP 4") <= 1 for text in texts)


@pytest.mark.parametrize("is_sent", [False, True])
async def test_credential_that_no_target_uses_has_a_warning(
    *, is_sent: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    form = FORM.replace("bearer:", "card_origins: ['https://lab.example'], bearer:") if is_sent else FORM
    async with trying(tmp_path, behind_login(), form=form) as code:
        assert code == 0
    assert ("never sent" in capsys.readouterr().err) is not is_sent


async def test_hint_names_the_file_of_the_definition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with trying(tmp_path, answer(404)):
        pass
    assert f"--definition {tmp_path / 'lab.yml'}" in capsys.readouterr().out.splitlines()[-1]


async def test_credential_test_prints_one_line_per_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with trying(tmp_path, behind_login()) as code:
        assert code == 0
    printed = capsys.readouterr().out
    assert "canary" not in printed
    lines = printed.splitlines()
    assert [line.split()[0] for line in lines] == [
        "definition", "secret", "place", "address", "tls", "without", "with", "works",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "step"),
    [
        (lambda: ("--url", "https://elsewhere.example/"), "place"),
        (lambda: (), "address"),
    ],
    ids=["another place", "no server"],
)
async def test_credential_test_ends_at_the_failed_step(
    change: Callable[[], tuple[str, ...]], step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = await run(tmp_path, f"http://127.0.0.1:{free_port()}", "--json", *change())
    document = shown(capsys)
    assert document["steps"][-1]["name"] == step
    assert code == EXIT_CODES[document["verdict"]] != 0


async def test_missing_secret_is_a_failed_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LAB_TOKEN")
    async with trying(tmp_path, answer(200), "--json") as code:
        assert code == 1
    last = shown(capsys)["steps"][-1]
    assert (last["name"], last["result"]) == ("secret", "fault")
    assert "LAB_TOKEN" in last["text"]


@pytest.mark.parametrize("code", ["insufficient_scope", TOKEN])
async def test_the_reason_of_a_rejection_is_shown_if_it_is_a_known_code(
    code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = answer(403, WWW_Authenticate=f'Bearer realm="x", error="{code}"')
    async with trying(tmp_path, reply) as exit_code:
        assert exit_code == EXIT_CODES["fault"]
    printed = capsys.readouterr().out
    assert "canary" not in printed
    *_, request, _, last = printed.splitlines()
    assert ("(insufficient_scope)" in request) is (code != TOKEN)
    assert ("scope" in last) is (code != TOKEN)


async def test_wrong_file_mode_is_explained_in_the_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lab.secret"
    file.write_text(TOKEN)
    file.chmod(0o644)
    form = FORM.replace("{{env: LAB_TOKEN}}", f"{{{{file: {file}}}}}")
    async with trying(tmp_path, answer(200), form=form) as code:
        assert code == EXIT_CODES["fault"]
    assert f"chmod 600 {file}" in capsys.readouterr().out.splitlines()[-1]


async def test_credential_test_sends_nothing_to_a_blocked_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(tmp_path, "http://10.0.0.1", "--json") == 1
    last = shown(capsys)["steps"][-1]
    assert (last["name"], last["result"]) == ("address", "fault")


@pytest.mark.parametrize(
    ("name", "options"), [("other", ()), ("lab", ("--url", "/rpc")), ("lab", ("--url", "http://[::1"))]
)
async def test_wrong_usage_is_refused(
    name: str, options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with trying(tmp_path, answer(200), *options, name=name) as code:
        assert code == 3
    assert "lab" in capsys.readouterr().err or options


def test_each_verdict_has_an_exit_code() -> None:
    assert EXIT_CODES.keys() == {verdict.value for verdict in TrialVerdict}


LOGIN = (
    "  - name: acme\n    origin: 'https://acme.example'\n    oauth2:\n"
    "      grant: refresh_token\n      auth_method: none\n      client_id: lifesign\n"
    "      token_file: acme.refresh\n      token_url: 'https://login.example/token'\n"
    "      authorization_url: 'https://login.example/authorize'\n"
)


@pytest.mark.parametrize("fault", [None, "refused"])
@pytest.mark.parametrize(("options", "opened"), [((), 1), (("--no-browser",), 0), (("--json",), 1)])
def test_login_opens_the_url_and_reports_where_the_token_is(
    fault: str | None,
    options: tuple[str, ...],
    *,
    opened: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    browsed: list[str] = []

    async def log_in(*_: object, open_url: Callable[[str], None], **__: object) -> str | None:
        open_url("https://login.example/authorize?state=1")
        return fault

    monkeypatch.setattr("lifesign.crawl.oauth_login.log_in", log_in)
    monkeypatch.setattr(credentials, "_open_browser", browsed.append)
    file = tmp_path / "lab.yml"
    file.write_text(
        f"name: lab\ncontact: mailto:tests@agent.example\ntargets: [https://acme.example]\ncredentials:\n{LOGIN}"
    )
    code = main(["credentials", "login", "acme", "--definition", str(file), "--yes", *options])
    assert code == (0 if fault is None else 1)
    assert len(browsed) == opened
    printed = capsys.readouterr()
    stored = str(tmp_path / "acme.refresh")
    if options == ("--json",):
        assert json.loads(printed.out) == {"credential": "acme", "token_file": stored, "fault": fault}
    else:
        assert "https://login.example/authorize?state=1" in printed.out.splitlines()
        assert (f"stored      {stored}" in printed.out) is (fault is None)
        assert (str(fault) in printed.err) is (fault is not None)
