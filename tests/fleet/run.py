"""The labelled fleet: runs all scenarios and reports how often a registry was wrong.

    python -m tests.fleet.run [--seed N] [--factor F] [--jobs N] [--only TEXT] [--minutes M] [--report FILE]

Exit codes: 0 all as labelled, 1 something was wrong, 2 it cannot run here.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.fleet.report import Finished, report
from tests.fleet.scenarios import all_scripts
from tests.fleet.script import Script

FACTOR: Final = 30.0
JOBS: Final = 8
MINUTES: Final = 55.0
PROGRAMS: Final = ("unshare", "ip", "nft", "faketime")
START_STAGGER_S: Final = 1.0
GRACE_S: Final = 400.0
"""Beyond a script's own time, for the start and the end of its programs."""


async def run_one(script: Script, factor: float, directory: Path) -> Finished:
    """Run one scenario in a separate namespace."""
    home = directory / script.name
    home.mkdir()
    (home / "script.json").write_text(script.to_json())
    with (home / "world.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
            sys.executable, "-m", "tests.fleet.world", str(home), str(factor),
            stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        limit_s = script.ends_at_s / factor + GRACE_S
        why = ""
        try:
            async with asyncio.timeout(limit_s):
                await process.wait()
        except TimeoutError:
            why = f"it did not end within {limit_s:.0f} s. "
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    result = home / "result.json"
    if not result.exists():
        return Finished(script, None, why + (home / "world.log").read_text()[-2000:])
    return Finished(script, json.loads(result.read_text()), "")


async def run_all(
    scripts: list[Script], factor: float, jobs: int, minutes: float, directory: Path
) -> list[Finished]:
    """Run scenarios, the longest first, `jobs` at a time; those that do not fit the time are missing.

    SIGTERM ends those under way.
    """
    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    free = asyncio.Semaphore(jobs)
    latest_s = time.monotonic() + minutes * 60

    async def when_free(place: int, script: Script) -> Finished:
        await asyncio.sleep(place % jobs * START_STAGGER_S)
        async with free:
            if time.monotonic() + script.ends_at_s / factor > latest_s:
                return Finished(script, None, "no time was left for it")
            finished = await run_one(script, factor, directory)
            print(f"{'ok  ' if finished.is_right else 'FAIL'} {script.name}", flush=True)
            return finished

    longest_first = sorted(scripts, key=lambda script: -script.ends_at_s)
    return list(await asyncio.gather(*(when_free(*each) for each in enumerate(longest_first))))


def main() -> int:
    """Run the scenarios of the command line."""
    parser = argparse.ArgumentParser(description="Run the labelled fleet.")
    parser.add_argument("--seed", type=int, default=1, help="draws agents, faults and combinations")
    parser.add_argument("--factor", type=float, default=FACTOR, help="divides all durations")
    parser.add_argument("--jobs", type=int, default=JOBS, help="scenarios at a time")
    parser.add_argument("--only", default="", help="scenarios whose names contain this")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="time for all of them")
    parser.add_argument("--report", type=Path, help="write the report to this file, too")
    parser.add_argument("--keep", action="store_true", help="keep logs and databases")
    parser.add_argument("--list", action="store_true", help="print the names of the scenarios")
    given = parser.parse_args()
    scripts = [script for script in all_scripts(given.seed) if given.only in script.name]
    if given.list:
        print("\n".join(script.name for script in scripts))
        return 0
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        print(f"cannot run: {', '.join(missing)} not found", file=sys.stderr)
        print("hint: apt-get install util-linux iproute2 nftables faketime", file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print("cannot run: network namespaces and packet filters need root", file=sys.stderr)
        return 2
    directory = Path(tempfile.mkdtemp(prefix="fleet-"))
    try:
        finished = asyncio.run(run_all(scripts, given.factor, given.jobs, given.minutes, directory))
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    finally:
        if not given.keep:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            print(f"kept: {directory}")
    text = report(finished, seed=given.seed, factor=given.factor)
    print(text)
    if given.report is not None:
        given.report.write_text(text)
    return 0 if finished and all(each.is_right for each in finished) else 1


if __name__ == "__main__":
    sys.exit(main())
