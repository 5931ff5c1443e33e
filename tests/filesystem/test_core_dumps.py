import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from lifesign.cli.commands import crawl, mcp

CREDENTIAL = """
from lifesign.prober.definition.credentials import CredentialSettings
from lifesign.prober.secrets.secret_reader import read_secrets
lab = {"name": "lab", "origin": "https://lab.example", "bearer": {"file": sys.argv[1]}}
read_secrets([CredentialSettings(**lab)])
"""
KEY = """
import os
from lifesign.cli.options.registry_access import read_key
os.environ["LIFESIGN_KEY"] = "lsk_" + 43 * "A"
read_key(None)
"""
TOKEN = """
from lifesign.cli.options.secret_file import read_secret
read_secret(Path(sys.argv[1]), "--token-file", "token")
"""


VARIABLE = """
from lifesign.cli.commands.check import _token
_token(None)
"""


@pytest.mark.parametrize(
    "reads",
    [CREDENTIAL, KEY, TOKEN, VARIABLE],
    ids=["credential of a definition", "key of a variable", "token of a command", "token of a variable"],
)
def test_a_process_with_secrets_writes_no_core_dump(tmp_path: Path, reads: str) -> None:
    file = tmp_path / "secret"
    file.touch(mode=0o600)
    file.write_text("a-secret-of-a-test")
    program = f"import sys\nfrom pathlib import Path\n{reads}\nprint(open('/proc/self/limits').read())"
    run = subprocess.run(
        [sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True
    )
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("Max core file size")]
    assert line.split()[4:6] == ["1", "1"]


HARD_LIMIT_0 = """
import ctypes
import resource
from lifesign.filesystem import core_dumps
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
def refuse(_, limits):
    if limits != (0, 0):
        raise ValueError("not allowed to raise maximum limit")
resource.setrlimit = refuse
core_dumps.forbid_core_dumps()
# PR_GET_DUMPABLE
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
"""


def test_process_that_cannot_raise_its_limit_of_core_dumps_is_not_dumpable() -> None:
    run = subprocess.run([sys.executable, "-c", HARD_LIMIT_0], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "0"


class _Forbidden(Exception):
    """Core dumps were disabled."""


@pytest.mark.parametrize(
    ("module", "begin"),
    [
        (crawl, partial(crawl.run_crawl, cast("Any", None), "postgresql://", is_once=True, processes=1)),
        (mcp, partial(mcp._front, "127.0.0.1", 8000, [], None)),
    ],
)
def test_commands_that_get_a_secret_from_the_environment_write_no_core_dumps(
    module: ModuleType, begin: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid() -> None:
        raise _Forbidden

    monkeypatch.setattr(module, "forbid_core_dumps", forbid)
    with pytest.raises(_Forbidden):
        begin()
