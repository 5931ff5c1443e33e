"""The command `lifesign`.

    application.py      which commands are there, and how do they end?
    check.py            should I call this agent?
    validate.py         is this a health document?
    probe.py            what do these agents look like from outside, now?
    crawl.py            who of a directory is alive: again and again, or once?
    census.py           what share of a list is alive?
    recheck.py          how is this agent now, by the eyes of whoever watches it?
    directories.py      which directories are probed, and what became of a list that has shrunk?
    targets.py          which targets are there, and what came of their probes?
    known_as.py         who is meant by this id or URL?
    agents.py           which agents are there, and what becomes of them?
    held_decisions.py   is a status older than it looks, since decisions are held?
    agent_page.py       how is an agent's record shown to people?
    history.py          how did an agent do over the last day and month?
    maintenance.py      when may nothing take an agent down?
    monitor.py          what does an operator confirm as down?
    erase.py            how is an agent forgotten?
    tasks.py            what is to be done, and how does it go on?
    task_page.py        how is a task shown to people?
    run.py              how is a command run under the lease of a task?
    run_lines.py        how is what an adapter tells shown?
    events.py           what has happened, and what is happening?
    key_names.py        what are the keys called that act in events which come one by one?
    watch_activity.py   what do an agent's sessions do elsewhere?
    watched_agents.py   whose sessions are watched, and with which keys do they beat?
    mcp.py              how do models get lifesign as tools?
    serve.py            how is the server started?
    doctor.py           is this set-up in order, and if not, what is there to do?
    examination/        what can be wrong with a set-up, and how is that found out?
    completion.py       how does a shell complete our commands and options?
    config_file.py      how are settings read from a file, and where does each come from?
    migrate.py          is the database of this version?
    keys.py             who gets a key?
    backup.py           how does all that the registry knows get into a file, and back?
    database.py         how is a database accepted that is not the one that this host knows?
    crawl_run.py        how does a crawl go, from its first line to its last?
    crawl_home.py       where does a crawl have its home: in a database of its own, or in a registry?
    crawl_processes.py  how do several processes crawl together, and what if one of them dies?
    crawl_process.py    what does one process of a crawl do?
    crawl_families.py   which numbers does a crawl tell Prometheus?
    crawl_metrics.py    how does Prometheus ask a crawl?
    crawl_share.py      what does it have to know, and what does it say?
    directory_import.py how does what a directory lists become targets?
    list_place.py       is this the list that is known by this name, or another one that is called alike?
    census_facts.py     from which counts is a census taken?
    census_report.py    how does a census get into files, and in which forms?
    targets_csv.py      how is every target listed as CSV?
    local_ledger.py     where do targets come from, and where do results go, without a server?
    local_registry.py   how are a registry's deeds done in this process?
    prober_assembly.py  how is a prober put together from its definition?
    observation_page.py how is it shown to people what one probe saw?
    ending_signals.py   which signals ask a command to end, and what if its terminal has gone?
    log_output.py       where do lines of the log go while a command runs, and in which form?
    progress.py         how far is a crawl, and how is that shown?
    server_database.py  how does a command reach the database itself, without a server?
    duration.py         how is a duration written on the command line?
    task_id.py         how is a task named on the command line?
    option_names.py     by which option did a wrong setting come in?
    registry_access.py  how does a command ask the registry, and how does it end?
    secret_file.py      how does a command read a key or a token from a file?
    table.py            how are rows shown as aligned columns, and values as JSON?
    terminal.py         how is a peer's text shown without harm?
    left_reader.py      what if whoever reads the output has left?

Nothing is imported before it is needed: `--help` loads no HTTP client, and without the extra
that brings it there is an answer, not a traceback.
"""

import errno
import sys
from collections.abc import Sequence

from lifesign.cli.output.broken_pipe import EXIT_READER_LEFT, write_nothing_more

EXIT_USAGE = 3
"""Wrong usage, or something that is not installed: "unknown" to whoever reads monitoring plugins."""

_EXTRAS = {
    "aiohttp": "client", "typer": "client", "yarl": "client",
    "alembic": "registry", "sqlalchemy": "registry", "starlette": "registry", "sse_starlette": "registry",
    "httptools": "registry", "rfc8785": "registry", "ulid": "registry", "uvicorn": "registry",
    "publicsuffixlist": "prober", "pycares": "prober", "rich": "prober", "schedule": "prober",
    "uvloop": "prober", "yaml": "prober,registry",
    "asyncpg": "postgres",
    "structlog": "registry",
    "prometheus_client": "metrics",
    "mcp": "mcp", "mcp_types": "mcp",
}  # fmt: skip
"""Which extra brings a module."""

_OF_AN_OUTPUT = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
"""What a write to one of our streams fails with: a full disk, say."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the process; return its exit code."""
    try:
        from lifesign.cli.application import run  # noqa: PLC0415 - typer may not be installed

        if sys.stdout is None or sys.stderr is None:
            # Nobody would read what a command says.
            if sys.stderr is not None:
                sys.stderr.write("lifesign: standard output is closed: open it, also if to /dev/null\n")
            return EXIT_USAGE
        # What a terminal cannot show must not end in a traceback.
        for stream in (sys.stdout, sys.stderr):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="replace")
        exit_code = run(arguments)
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        extra = _EXTRAS[missing]
        sys.stderr.write(f"lifesign: {missing} is not installed: pip install 'lifesign[{extra}]'\n")
        return EXIT_USAGE
    except BrokenPipeError:
        write_nothing_more()
        return EXIT_READER_LEFT
    except OSError as error:
        # Whoever reads the exit code must not take it for a finding.
        write_nothing_more()
        sys.stderr.write(f"lifesign: {_what_failed(error)}\n")
        return EXIT_USAGE
    return exit_code


def _what_failed(error: OSError) -> str:
    """Say what the system refused; of streams it does not say that it was they."""
    why = error.strerror or type(error).__name__
    if error.filename is not None:
        return f"what it needs is refused by the system: {error.filename!a} ({why})"
    if error.errno in _OF_AN_OUTPUT:
        return f"the output cannot be written ({why})"
    return f"what it needs is refused by the system ({why})"
