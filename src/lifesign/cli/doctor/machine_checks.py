"""Checks of installed packages and network access."""

import resource
import socket
import sys
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from typing import Final

from lifesign.cli.doctor.check_result import CheckResult
from lifesign.domain.common.project import install_hint

FEW_FILES: Final = 4_096
OUTSIDE: Final = {"IPv4": (socket.AF_INET, "192.0.2.1"), "IPv6": (socket.AF_INET6, "2001:db8::1")}
"""Addresses for documentation (RFC 5737, RFC 3849). The check looks for a route to them and sends nothing."""
EXTRAS: Final = {
    "client": "aiohttp", "registry": "sqlalchemy", "prober": "pycares", "postgres": "asyncpg", "mcp": "mcp",
    "metrics": "prometheus_client",
}  # fmt: skip
"""Module that shows whether each extra is installed."""


def of_the_program() -> Iterator[CheckResult]:
    """Report the installed version and extras of lifesign, and check the limit of open files."""
    there = [extra for extra, module in EXTRAS.items() if find_spec(module) is not None]
    python = ".".join(map(str, sys.version_info[:3]))
    summary = f"lifesign {version('lifesign')}, Python {python}, with {', '.join(there)}"
    yield CheckResult("program", "ok", summary)
    if "metrics" not in there:
        yield CheckResult(
            "metrics", "skipped", "a server on this machine has no /metrics", install_hint("metrics")
        )
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < FEW_FILES:
        advice = (
            f"raise the limit: LimitNOFILE= of a unit, or ulimit -Hn; below {FEW_FILES:,} is too low "
            "for a fleet"
        )
        yield CheckResult("open files", "warning", f"this user may have {most:,} open", advice)


def of_the_network() -> Iterator[CheckResult]:
    """Check name resolution, and routes to IPv4 and IPv6 addresses."""
    try:
        socket.getaddrinfo("localhost", None)
        yield CheckResult("names", "ok", "localhost is known")
    except OSError as error:
        yield CheckResult(
            "names", "fault", f"localhost is unknown: {error}", "check /etc/hosts and nsswitch.conf"
        )
    for family, (number, address) in OUTSIDE.items():
        try:
            with socket.socket(number, socket.SOCK_DGRAM) as unsent:
                # Nothing is sent: the kernel looks for a way.
                unsent.connect((address, 9))
            yield CheckResult(family, "ok", "this machine has a route to the Internet; no request was sent")
        except OSError as error:
            advice = "" if family == "IPv6" else "a prober cannot reach any target from this machine"
            summary = f"this machine has no route to the Internet: {error.strerror}"
            yield CheckResult(family, "skipped" if family == "IPv6" else "warning", summary, advice)
