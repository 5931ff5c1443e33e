"""Every run draws the same examples, and a random run can be repeated."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.servers import REPOSITORY

TESTS = REPOSITORY / "tests"
PROPERTY = """
import json
from pathlib import Path

import program
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.support.properties import examples

drawn = []

@settings(max_examples=examples(40))
@given(st.integers() | st.text())
def test_draws(value):
    drawn.append(value)

@given(st.integers())
def test_draws_as_many_as_usual(value):
    drawn.append(None)

def test_chance_is_the_seeds():
    import random
    drawn.append(random.random())

def test_tells():
    Path("drawn.json").write_text(json.dumps(drawn))

# To make the failing example smaller took most of the time.
@settings(phases=[Phase.generate])
@given(st.integers())
def test_fails(value):
    assert value < 100
"""
PLUGINS = ("-p", "_hypothesis_pytestplugin", "-p", "tests.support.properties")
CONSTANTS = "NUMBERS = (" + ", ".join(str(10**9 + 7 * number) for number in range(200)) + ")\n"
"""A source file that Hypothesis draws from if it is allowed to."""


def run(
    directory: Path,
    *options: str,
    program: str = "",
    outcome: str = "1 failed, 4 passed",
    **environment: str,
) -> tuple[list[object], str]:
    """Run the property in a directory of its own; return what it drew and what pytest printed."""
    directory.mkdir()
    (directory / "program.py").write_text(program)
    (directory / "check_it.py").write_text(PROPERTY)
    path = os.pathsep.join([str(directory), str(REPOSITORY)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGINS, *options, "check_it.py"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert outcome in done.stdout, done.stdout
    return json.loads((directory / "drawn.json").read_text()), done.stdout


def test_default_runs_draw_the_same_examples(tmp_path: Path) -> None:
    first, printed = run(tmp_path / "first", PYTHONHASHSEED="1")
    second, _ = run(tmp_path / "second", program=CONSTANTS, PYTHONHASHSEED="2", CI="true")
    assert first == second
    assert (len(first), first.count(None)) == (12 + 30 + 1, 30)
    assert "SEED=" not in printed


@pytest.mark.long
def test_random_run_draws_a_thousand_examples_and_is_repeatable_by_its_seed(tmp_path: Path) -> None:
    options = ("--hypothesis-profile", "random")
    first, printed = run(tmp_path / "first", *options, CI="true")
    assert (len(first), first.count(None)) == (400 + 1_000 + 1, 1_000)
    # Once at the beginning, and once beside the failure.
    (seed, again) = re.findall(r"SEED=(\d+) make faults", printed)
    assert seed == again
    assert run(tmp_path / "same", *options, "--hypothesis-seed", seed)[0] == first
    other, _ = run(tmp_path / "other", *options, "--hypothesis-seed", str(int(seed) + 1), CI="true")
    assert other != first


@pytest.mark.long
def test_processes_of_one_run_share_one_seed(tmp_path: Path) -> None:
    options = ("-p", "xdist", "--numprocesses=2", "--dist=each", "--hypothesis-profile", "random")
    _, printed = run(tmp_path / "both", *options, outcome="2 failed, 8 passed")
    assert len(set(re.findall(r"SEED=(\d+) make faults", printed))) == 1


def test_example_counts_are_scaled_by_the_profile() -> None:
    places = [
        (f"{file.relative_to(TESTS)}:{number}", line)
        for file in TESTS.rglob("*.py")
        if file not in {Path(__file__), TESTS / "support" / "properties.py"}
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if "max_examples" in line
    ]
    assert len(places) >= 20
    assert [place for place, line in places if "max_examples=examples(" not in line] == []
