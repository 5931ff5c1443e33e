"""Runs all benchmarks, one after another.

    .venv/bin/python benchmarks/run.py [--quick] [NAME ...]

Each file beside this one measures one subject and also runs by itself. docs/benchmarks.md explains the
tables.
"""

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BENCHMARKS = (
    "in_process",
    "over_http",
    "percentiles",
    "windows",
    "imports",
    "heartbeats",
    "steady_fleet",
    "leases",
    "lease_keepers",
    "adapter_cost",
    "tool_proxy",
    "listing",
    "dashboard",
    "sweep",
    "prober_census",
    "prober_all_alive",
    "prober_steady",
    "fetch_cost",
    "probe_cost",
    "mcp_cost",
    "token_cost",
    "worker_cost",
    "report_results",
    "read_list",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, only to see that all run")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default: all")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(BENCHMARKS):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    python = f"{platform.python_implementation()} {platform.python_version()}"
    print(f"{python}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    failed = []
    for name in asked.names or BENCHMARKS:
        command = [sys.executable, str(HERE / f"{name}.py"), *(["--quick"] if asked.quick else [])]
        title = (HERE / f"{name}.py").read_text().partition("\n")[0].strip('"')
        print(f"\n## {name}: {title}", flush=True)
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
