"""A prober of which one address family is cut below HTTP."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from tests.support.cut_network import HOSTS, OWN
from tests.support.servers import PATIENCE_SECONDS, REPOSITORY


def _in_namespace(cut: str) -> dict[str, list[list[str | None]]]:
    """Run the prober in a network namespace; skip where none can be made."""
    missing = [program for program in ("unshare", "nft", "ip") if shutil.which(program) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"NOT RUN: needs root, unshare, nft and ip (absent: {', '.join(missing) or 'root'})")
    if subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode:
        pytest.skip("NOT RUN: this machine makes no network namespaces")
    command = ["unshare", "--net", sys.executable, "-m", "tests.support.cut_network", cut]
    done = subprocess.run(
        command, cwd=REPOSITORY, check=False, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[list[str | None]]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("cut", ["drop", "reject"])
def test_lost_ipv6_of_the_prober_fails_no_ipv6_target(cut: str) -> None:
    found = _in_namespace(cut)
    for number in range(1, HOSTS + 1):
        six = found[f"fd00:9::{number}"]
        assert {result for result, *_ in six} == {"not_measured"}
        assert "no_witness" in {reason for _, reason, _ in six}
    # Among the reached targets, the dead one is found, and the others answer.
    died = {(result, reason) for result, reason, _ in found["10.9.0.1"]}
    assert ("refused", None) in died
    assert died <= {("refused", None), ("not_measured", "not_probed")}
    for number in range(2, HOSTS + 1):
        assert "ok" in {result for result, *_ in found[f"10.9.0.{number}"]}
        assert {result for result, *_ in found[f"10.9.0.{number}"]} <= {"ok", "not_measured"}


def test_agent_on_the_probers_machine_is_no_witness_for_remote_hosts() -> None:
    found = _in_namespace("all others")
    assert {(result, network_class) for result, _, network_class in found[OWN]} == {("ok", "this_machine")}
    for number in range(1, HOSTS + 1):
        four = found[f"10.9.0.{number}"]
        assert {result for result, *_ in four} == {"not_measured"}
        assert "no_witness" in {reason for _, reason, _ in four}
