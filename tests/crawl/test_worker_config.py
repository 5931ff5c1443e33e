"""Names of a crawl's workers."""

import os
import re
import subprocess
import sys

import pytest
from pydantic import TypeAdapter

from lifesign.crawl import worker_config
from lifesign.crawl.worker_config import is_predecessor, worker_name
from lifesign.domain.models.shards import WorkerName


def _with(name: str, *, pid: int | None = None, run: str | None = None) -> str:
    host, old_pid, old_run, number = name.rsplit("-", 3)
    return f"{host}-{old_pid if pid is None else pid}-{run or old_run}-{number}"


def _ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_worker_name_is_valid_for_a_long_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_config, "_host", lambda: "h" * worker_config.MAX_HOST_CHARS + "-0123ab")
    monkeypatch.setattr(os, "getpid", lambda: 4_194_304)
    TypeAdapter(WorkerName).validate_python(worker_name(1_024, is_alone=False))


def test_crawl_that_ended_on_this_machine_is_a_predecessor() -> None:
    assert is_predecessor(_with(worker_name(2, is_alone=False), pid=_ended_pid(), run="0a1b2c"))


def test_crawl_with_the_same_process_id_is_a_predecessor() -> None:
    # A container was started again.
    assert is_predecessor(_with(worker_name(1, is_alone=False), run="0a1b2c"))


def test_other_crawl_that_runs_is_not_a_predecessor() -> None:
    name = worker_name(1, is_alone=False)
    assert not is_predecessor(name)
    assert not is_predecessor(_with(name, pid=os.getppid(), run="0a1b2c"))


@pytest.mark.parametrize(
    "name",
    ["worker-1", "other-0123ab-4194303-0a1b2c-1", "prober", "a-b-c-d", f"x-{10**30}-0a1b2c-1"],
)
def test_crawl_elsewhere_is_not_a_predecessor(name: str) -> None:
    assert not is_predecessor(name)


def test_machines_with_the_same_host_name_have_different_names(monkeypatch: pytest.MonkeyPatch) -> None:
    worker_config._host.cache_clear()
    try:
        here = worker_name(1, is_alone=False)
        worker_config._host.cache_clear()
        monkeypatch.setattr(worker_config, "_MACHINE_FILES", ())
        assert worker_name(1, is_alone=False).split("-")[1] != here.split("-")[1]
        assert re.fullmatch(r"[A-Za-z0-9]+-[0-9a-f]{6}-\d+-[0-9a-f]{6}-1", here)
    finally:
        worker_config._host.cache_clear()
