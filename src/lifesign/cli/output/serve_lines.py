"""Lines of a starting server, for people or as log lines for programs."""

import logging
import sys
from typing import TYPE_CHECKING

from lifesign.domain.net.peer_text import printable

if TYPE_CHECKING:
    from lifesign.registry.run_server import Prepared

_log = logging.getLogger("lifesign.registry")


def say_prepared(prepared: "Prepared", same: str = "") -> None:
    """Print the server's database, and the first admin key or how to create one."""
    lines = [f"database {prepared.database}"]
    if prepared.admin_key is not None:
        lines += ["admin key, shown once:", f"  {prepared.admin_key}"]
    elif prepared.needs_admin_key:
        lines.append(
            f"there is no admin key yet; create one: lifesign keys create --role admin --name NAME{same}"
        )
    _print_lines(*lines)


def say_ready(url: str) -> None:
    """Print the URL at which the server listens."""
    _print_lines(f"lifesign registry at {url}")


def log_prepared(prepared: "Prepared") -> None:
    """Log the database that the server uses. The first admin key is printed and not logged.

    Keys are for people, and never logged.
    """
    members = {"database": prepared.database, "needs_admin_key": prepared.needs_admin_key}
    _log.info("server.prepared", extra=members)
    if prepared.admin_key is not None:
        _print_lines("admin key, shown once:", f"  {prepared.admin_key}")


def log_ready(url: str) -> None:
    """Log the URL at which the server listens."""
    _log.info("server.ready", extra={"url": url})


def _print_lines(*lines: str) -> None:
    sys.stdout.write("".join(printable(line) + "\n" for line in lines))
    sys.stdout.flush()
