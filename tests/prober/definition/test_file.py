import contextlib
import errno
import os
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.support.definitions import definition_of

from lifesign.domain.errors import FileFault
from lifesign.domain.files import yaml_document
from lifesign.domain.files.yaml_document import MAX_FAULTS, MAX_FILE_BYTES
from lifesign.errors import InvalidValue
from lifesign.prober.definition.file import read_definition_file
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.errors import InvalidDefinition

REPOSITORY = Path(__file__).parents[3]
DEFINITIONS = sorted((REPOSITORY / "probes").glob("*.yml"))
DEMO = REPOSITORY / "probes" / "demo.yml"
HEAD = "name: census\ncontact: mailto:ops@agent.example\n"


@pytest.fixture(autouse=True, params=["CSafeLoader", "SafeLoader"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of PyYAML's parsers: which one is there depends on how it was built."""
    monkeypatch.setattr(yaml_document, "_LOADER", getattr(yaml, request.param))


def faults_of(text: str) -> list[str]:
    with pytest.raises(InvalidDefinition) as caught:
        definition_of(text)
    assert "/x.yml: line " in str(caught.value)
    return [str(fault) for fault in caught.value.faults]


def cause_of(fault: FileFault) -> tuple[str, str]:
    """Return the file that a fault names, and what its opening came to."""
    found = re.search(r": (\S+) \((.+)\)$", fault.expected)
    assert found is not None, fault.expected
    return found[1], found[2]


# --- valid files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", DEFINITIONS, ids=lambda path: path.stem)
def test_every_definition_in_the_repository_is_read(path: Path, tmp_path: Path) -> None:
    if path == DEMO:
        # The demo makes its list itself.
        (tmp_path / "demo-agents.txt").touch()
        definition = definition_of(path.read_text(), tmp_path / path.name)
    else:
        definition = read_definition_file(path)
    assert definition.name == path.stem
    assert definition.directories or definition.targets


def test_demo_definition_lacks_only_its_generated_agent_list() -> None:
    with pytest.raises(InvalidDefinition) as caught:
        read_definition_file(DEMO)
    (fault,) = caught.value.faults
    assert f"{REPOSITORY}/probes/demo-agents.txt ({os.strerror(errno.ENOENT)})" in fault.expected


def test_the_reference_shows_every_setting_with_its_default() -> None:
    text = (REPOSITORY / "probes/reference.yml").read_text()
    shown = ProbeDefinition.model_validate(yaml.safe_load(text))
    written = yaml.safe_load(text)
    least = ProbeDefinition.model_validate({name: written[name] for name in ("name", "contact", "targets")})
    sections = ("ask", "cadence", "timeouts", "limits", "networks", "resolver", "evidence", "results")
    for section in (*sections, "witnesses", "self_check"):
        assert set(written[section]) == set(type(getattr(shown, section)).model_fields)
        assert getattr(shown, section) == getattr(least, section)
    assert set(written) == set(ProbeDefinition.model_fields)
    assert set(written["opt_out"]) == set(type(shown.opt_out).model_fields)
    assert set(written["directories"][0]) | {"file"} == set(type(shown.directories[0]).model_fields)


def test_paths_are_relative_to_the_directory_of_the_definition(tmp_path: Path) -> None:
    file = tmp_path / "one.yml"
    (tmp_path / "out.txt").touch()
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/a.txt").touch()
    file.write_text(
        HEAD + "directories: [{file: lists/a.txt}, {url: a.example, key_file: ../key}]\n"
        "opt_out: {files: [out.txt]}\nevidence: {directory: kept}\nresults: {jsonl: /var/results.jsonl}\n"
    )
    definition = read_definition_file(file)
    assert definition.directories[0].file == tmp_path / "lists/a.txt"
    assert definition.directories[1].key_file == tmp_path / "../key"
    assert definition.opt_out.files == (tmp_path / "out.txt",)
    assert definition.evidence.directory == tmp_path / "kept"
    assert definition.results.jsonl == Path("/var/results.jsonl")


def test_byte_order_mark_is_accepted_in_a_definition(tmp_path: Path) -> None:
    file = tmp_path / "one.yml"
    file.write_bytes(b"\xef\xbb\xbf" + (HEAD + "targets: [a.example]\n").encode())
    assert read_definition_file(file).name == "census"


# --- reported faults -----------------------------------------------------------------------------


def test_all_errors_are_reported_with_their_lines() -> None:
    text = """\
# Wrong in many ways.
name: Census
directories:
  - url: https://directory.example/agents
    formt: auto
  - {file: agents.txt, url: agents.example}
targets:
  - https://agent.example
  - "https://agent.example/{tenant}"
ask: {card: no, message: {txt: hi}}
cadence:
  interval_seconds: 60
limits:
  per_host: "2"
opt_out:
networks: {allow: [10.0.0.1/8]}
"""
    assert faults_of(text) == [
        "line 2: /name: expected 1 to 64 lower-case letters, digits and . _ -, the first a letter or a digit",
        (
            "line 5: /directories/0/formt: no such key; expected one of "
            "url, file, name, format, refresh_seconds, key_file, allow_shrink, kinds"
        ),
        "line 6: /directories/1: expected exactly one of url and file",
        ("line 9: /targets/1/url: a URL consists of the characters of RFC 3986; percent-encode all others"),
        "line 10: /ask/message/text: expected this key",
        "line 10: /ask/message/txt: no such key; expected one of text",
        (
            "line 12: /cadence/interval_seconds: expected 300 or more; for your own agents, less is "
            "possible with allow_fast_cadence: true"
        ),
        "line 14: /limits/per_host: expected a whole number",
        "line 15: /opt_out: expected a mapping",
        "line 16: /networks/allow/0: expected a network such as 10.1.0.0/16",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "line 1: expected a mapping with the key name"),
        ("- name", "line 1: expected a mapping with the key name"),
        ("name: a\nname: b\n", "line 2: /name: this key occurs twice in the same mapping"),
        ("a: &a [x]\nb: *a\n", "line 2: expected no alias (*): write out what it stands for"),
        ("name: !!python/name:os.system\n", "line 1: expected no tag (!): quote a value"),
        ("name: a\n\tb: c\n", "line 2: expected YAML: "),
        (HEAD + "targets: [agent.example]\nmore: 1\n", "line 4: /more: no such key; expected one of name,"),
        (HEAD + "targets: agent.example\n", "line 3: /targets: expected a list"),
        (
            HEAD + "targets: [a.example]\nask:\n  paths: [/a, //b]\n",
            "line 5: /ask/paths/1: expected a path that",
        ),
        (HEAD + "targets: [7]\n", "line 3: /targets/0/url: expected a valid string"),
        (
            HEAD + "targets: [a.example]\nresults: {jsonl: ''}\n",
            "line 4: /results/jsonl: expected the path of",
        ),
        (
            HEAD + "targets: [a.example]\nask:\n  tools: true\n  call: {tool: a}\n",
            "line 6: /ask/call: expected `call` only in the `ask` of a single target",
        ),
        (
            HEAD + "targets:\n- b.ex\n- b.ex\n- {url: a.example, assertions: [{of: tool, status: 200}]}\n",
            "line 6: /targets/2: https://a.example/: an assertion about tool needs `call` in `ask`",
        ),
        (
            HEAD + "targets:\n- {url: a.example, kind: mcp}\n- {url: a.example, kind: a2a}\n",
            "line 5: /targets/1: https://a.example/ is listed twice",
        ),
    ],
)
def test_invalid_definition_is_refused_with_its_line(text: str, fault: str) -> None:
    assert faults_of(text)[0].startswith(fault)


def test_an_unknown_tag_is_not_quoted() -> None:
    assert "own" not in faults_of("name: !own!tag a\n")[0]


def test_number_of_reported_errors_is_bounded() -> None:
    assert len(faults_of("".join(f"key{number}: 1\n" for number in range(2 * MAX_FAULTS)))) == MAX_FAULTS


def test_missing_definition_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="No such file"):
        read_definition_file(tmp_path / "absent.yml")
    with pytest.raises(InvalidValue, match="directory"):
        read_definition_file(tmp_path)


def test_unreadable_agent_lists_are_reported_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "one.yml"
    (tmp_path / "there.txt").touch()
    (tmp_path / "more").mkdir()
    os.mkfifo(tmp_path / "pipe")
    file.write_text(
        HEAD + "directories:\n  - {file: there.txt}\n  - {url: a.example}\n  - {file: none.txt}\n"
        "  - name: b\n    file: more\n  - {file: pipe}\n  - {file: there.txt/c}\n"
        "opt_out: {files: [out.txt]}\n"
    )
    with pytest.raises(InvalidDefinition) as caught:
        read_definition_file(file)
    assert [(fault.line, fault.path, *cause_of(fault)) for fault in caught.value.faults] == [
        (6, "/directories/2/file", f"{tmp_path}/none.txt", os.strerror(errno.ENOENT)),
        (8, "/directories/3/file", f"{tmp_path}/more", "no regular file"),
        (9, "/directories/4/file", f"{tmp_path}/pipe", "no regular file"),
        (10, "/directories/5/file", f"{tmp_path}/there.txt/c", os.strerror(errno.ENOTDIR)),
        (11, "/opt_out/files/0", f"{tmp_path}/out.txt", os.strerror(errno.ENOENT)),
    ]


def test_missing_opt_out_lists_are_reported_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "one.yml"
    (tmp_path / "out.txt").touch()
    (tmp_path / "more").mkdir()
    os.mkfifo(tmp_path / "pipe")
    names = ["out.txt", "none.txt", "more", "pipe", "/dev/zero"]
    file.write_text(
        HEAD + "targets: [a.example]\nopt_out:\n  files:\n" + "".join(f"    - {name}\n" for name in names)
    )
    with pytest.raises(InvalidDefinition) as caught:
        read_definition_file(file)
    assert caught.value.file == str(file)
    assert [(fault.line, fault.path, *cause_of(fault)) for fault in caught.value.faults] == [
        (7, "/opt_out/files/1", f"{tmp_path}/none.txt", os.strerror(errno.ENOENT)),
        (8, "/opt_out/files/2", f"{tmp_path}/more", "no regular file"),
        # Writers of a pipe are not waited for, and endless files are not read.
        (9, "/opt_out/files/3", f"{tmp_path}/pipe", "no regular file"),
        (10, "/opt_out/files/4", "/dev/zero", "no regular file"),
    ]


def test_keys_in_missing_files_are_reported_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "one.yml"
    (tmp_path / "key").touch()
    os.mkfifo(tmp_path / "pipe")
    file.write_text(
        HEAD + "directories:\n  - {url: a.example, key_file: key}\n  - {url: b.example, key_file: absent}\n"
        "  - url: c.example\n    key_file: pipe\nresults: {key_file: pipe, registry: https://r.example}\n"
    )
    with pytest.raises(InvalidDefinition) as caught:
        read_definition_file(file)
    message = f"expected the file of a key: {tmp_path}/pipe (no regular file)"
    assert [str(fault) for fault in caught.value.faults] == [
        f"line 7: /directories/2/key_file: {message}",
        f"line 8: /results/key_file: {message}",
    ]


def test_a_file_that_is_no_text_or_too_large_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "one.yml"
    file.write_bytes(b"name: a\ncontact: \xff\n")
    with pytest.raises(InvalidDefinition, match="line 2: expected text in UTF-8"):
        read_definition_file(file)
    file.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(InvalidDefinition, match="at most 1048576 bytes"):
        read_definition_file(file)


WORDS = st.sampled_from(
    ["name", "contact", "targets", "directories", "url", "file", "ask", "cadence", "networks", "allow",
     "limits", "a", "a.example", "mailto:a@b.c", "10.0.0.0/8", "-1", "1e999", "yes", "~", ".inf", "0b_", "'",
     '"', "{", "}", "[", "]", ": ", "- ", ", ", "\n", "\n  ", "? ", "#", "%", "\x00", "\ud800", "é"]
)  # fmt: skip


@given(st.lists(WORDS, max_size=25).map("".join))
def test_any_text_gives_a_definition_or_an_invalid_definition_error(text: str) -> None:
    for to_dict in (text, HEAD + text, f"{HEAD}targets: [a.example]\n{text}"):
        with contextlib.suppress(InvalidDefinition):
            definition_of(to_dict)
