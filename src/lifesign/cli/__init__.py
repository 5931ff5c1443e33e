"""The command `lifesign`.

Modules are imported when a command needs them: `--help` loads no HTTP client, and a missing extra gives an
answer instead of a traceback.
"""

import errno
import sys
from collections.abc import Sequence

from lifesign.cli.output.broken_pipe import discard_remaining_output
from lifesign.cli.output.error_lines import complain
from lifesign.cli.output.exit_codes import ExitCode
from lifesign.domain.common.project import install_hint
from lifesign.serving.garbage_collection import rarely_collected, skip_last_collection

EXTRAS = {
    "aiohttp": "client", "idna": "client", "typer": "client", "yarl": "client",
    "alembic": "registry", "jinja2": "registry", "sqlalchemy": "registry", "starlette": "registry",
    "sse_starlette": "registry", "httptools": "registry", "rfc8785": "registry", "ulid": "registry",
    "uvicorn": "registry",
    "cryptography": "prober", "jwt": "prober", "publicsuffixlist": "prober", "pycares": "prober",
    "re2": "prober", "rich": "prober", "schedule": "prober",
    "uvloop": "prober", "yaml": "prober,registry",
    "asyncpg": "postgres",
    "structlog": "registry",
    "prometheus_client": "metrics",
    "mcp": "mcp", "mcp_types": "mcp",
}  # fmt: skip
"""Extra that installs each module."""

_OF_UNIX = frozenset({"fcntl", "grp", "pwd", "resource", "termios"})
"""Python modules that are absent on other systems (docs/platforms.md)."""

_OF_AN_OUTPUT = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
"""Errors of a write to an output stream, such as a full disk."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program `lifesign` with these arguments (None: those of the process); return the exit code."""
    if arguments is None:
        skip_last_collection()
    try:
        from lifesign.cli.application import run  # noqa: PLC0415 - typer may not be installed

        if not _has_outputs():
            return ExitCode.USAGE
        # Characters that a terminal cannot show must not end in a traceback.
        for stream in (sys.stdout, sys.stderr):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="replace")
        # Most of a command's time is for imports, which leave no garbage.
        with rarely_collected():
            exit_code = run(arguments)
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in _OF_UNIX:
            complain(f"this command needs Unix: the module {missing} is absent", hint="run it on Linux")
            return ExitCode.USAGE
        if missing not in EXTRAS:
            raise
        extra = EXTRAS[missing]
        complain(f"{missing} is not installed", hint=install_hint(*extra.split(",")))
        return ExitCode.USAGE
    except BrokenPipeError:
        discard_remaining_output()
        return ExitCode.READER_LEFT
    except OSError as error:
        # A caller must not mistake this exit code for a finding.
        discard_remaining_output()
        sys.stderr.write(f"lifesign: {_os_error_text(error)}\n")
        return ExitCode.USAGE
    return exit_code


def _has_outputs() -> bool:
    """Return whether standard output and error are open; complain if only the former is closed."""
    if sys.stdout is not None and sys.stderr is not None:
        return True
    if sys.stderr is not None:
        sys.stderr.write("lifesign: standard output is closed: redirect it to a file or to /dev/null\n")
    return False


def _os_error_text(error: OSError) -> str:
    """Return the reason of the operating system; for streams, it does not name them."""
    why = error.strerror or type(error).__name__
    # Such a name may be a token, which was given instead of a file.
    if error.filename is not None and error.errno != errno.ENAMETOOLONG:
        return f"the system refused access to {error.filename!a} ({why})"
    if error.errno in _OF_AN_OUTPUT:
        return f"could not write the output ({why})"
    return f"the system refused an operation ({why})"
