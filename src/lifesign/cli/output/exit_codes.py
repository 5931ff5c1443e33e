"""Exit codes: one meaning for each number, and its meaning for each command."""

from collections.abc import Mapping
from enum import IntEnum
from textwrap import fill
from types import MappingProxyType
from typing import Final

from lifesign.domain.errors import InvalidFile
from lifesign.errors import InvalidValue, LifesignError, NoAnswer
from lifesign.storage.errors import InvalidBackup


class ExitCode(IntEnum):
    """Exit codes of all commands except `check`, which has those of monitoring plugins.

    Wrong usage is 3 and not 2: a monitoring plugin that was called wrongly is UNKNOWN, not CRITICAL, and a
    script can distinguish a wrong call from a registry that does not answer.
    """

    SUCCESS = 0
    FAILED = 1
    NO_ANSWER = 2
    USAGE = 3
    INCOMPLETE = 4
    NO_INPUT = 5
    READER_LEFT = 141
    """128 and the number of SIGPIPE, as a shell reports it."""


MEANINGS: Final[Mapping[ExitCode, str]] = MappingProxyType({
    ExitCode.SUCCESS: "Done.",
    ExitCode.FAILED: "Refused, failed, or not in the expected state.",
    ExitCode.NO_ANSWER: "No answer: a server or a database cannot be reached or read.",
    ExitCode.USAGE: (
        "Wrong usage: an option, a value or a file is missing or wrong. Also if an extra is not installed "
        "or the output cannot be written."
    ),
    ExitCode.INCOMPLETE: "Incomplete: the command ended before it was finished.",
    ExitCode.NO_INPUT: "No task arrived in time, or a list of targets could not be read.",
    ExitCode.READER_LEFT: "The reader of the output ended before the command had a verdict.",
})  # fmt: skip


def exit_code_of(error: LifesignError) -> ExitCode:
    """Return the exit code of a command that ends with this error."""
    if isinstance(error, InvalidValue | InvalidFile | InvalidBackup):
        return ExitCode.USAGE
    return ExitCode.NO_ANSWER if isinstance(error, NoAnswer) else ExitCode.FAILED


_Row = Mapping[int, str]
"""Meaning of each exit code of one command; the keys are in the order of `--help`."""


def _row(done: str, failed: str, no_answer: str, usage: str = "wrong usage", **further: str) -> _Row:
    """Return a row; an empty meaning marks a code that the command does not use."""
    named = {"success": done, "failed": failed, "no_answer": no_answer, "usage": usage, **further}
    return MappingProxyType({ExitCode[name.upper()]: text for name, text in named.items() if text})


_WIDTH: Final = 76
_UNREADABLE = "the database cannot be reached or read"
_UNREADABLE_PLACE = "the registry or the database cannot be reached or read"
_REGISTRY = _row("done", "refused by the registry", "no usable answer from the registry")
_REGISTRY_OR_DATABASE = _row(
    "done",
    "refused by the registry or the database",
    _UNREADABLE_PLACE,
)
_NOT_CRAWLED = "refused, no list could be read, or the results could not be stored"
_CRAWL_USAGE = "wrong usage, or the definition is wrong"
_UNFINISHED = "ended before all targets were probed: the same command continues with the rest"
_UNREAD_LIST = "a list could not be read: the targets that it listed before were probed"

COMMANDS: Final[Mapping[str, _Row]] = MappingProxyType({
    "check": {0: "healthy", 1: "degraded", 2: "unhealthy", 3: "unknown, or wrong usage"},
    "validate": _row(
        "valid", "not valid", "the URL has no document", "wrong usage, or the file cannot be read"
    ),
    "probe": _row(
        "all targets are alive, and no assertion failed; some may be not_measured, such as behind a login",
        "at least one target is not alive, or an assertion failed",
        "no target is down, some are unknown",
    ),
    "credentials login": _row(
        "the refresh token is stored",
        "not confirmed, or the provider gave no token",
        "",
        "wrong usage, or the definition is wrong",
    ),
    "credentials test": _row(
        "the credential works, or is not needed",
        "the credential has a fault",
        "the answer of the server does not say whether the credential works",
        "wrong usage, or the definition is wrong",
    ),
    "crawl": _row(
        "done, or ended by a signal if it runs without an end",
        _NOT_CRAWLED,
        _UNREADABLE_PLACE,
        _CRAWL_USAGE,
        incomplete=_UNFINISHED,
        no_input=f"with --once: {_UNREAD_LIST}",
    ),
    "census": _row(
        "done",
        _NOT_CRAWLED,
        _UNREADABLE_PLACE,
        _CRAWL_USAGE,
        incomplete=_UNFINISHED,
        no_input=_UNREAD_LIST,
    ),
    "recheck": _row(
        "the agent is alive",
        "the agent is not alive, or the registry refused the request",
        (
            "no usable answer, no probe in time, or the probe could not measure (robots.txt, a rate limit, "
            "a blocked address)"
        ),
    ),
    "targets list": _REGISTRY_OR_DATABASE,
    "directories list": _REGISTRY_OR_DATABASE,
    "directories confirm": _REGISTRY_OR_DATABASE,
    "directories remove": _REGISTRY_OR_DATABASE,
    "agents list": _REGISTRY,
    "agents show": _REGISTRY,
    "agents register": _REGISTRY,
    "agents drain": _REGISTRY,
    "agents deregister": _REGISTRY,
    "agents command": _REGISTRY,
    "agents history": _REGISTRY,
    "agents versions": _REGISTRY,
    "agents compare": _REGISTRY,
    "agents maintenance": _REGISTRY,
    "agents link": _REGISTRY,
    "agents erase": _row(
        "erased", "refused by the registry, or not confirmed", "no usable answer from the registry"
    ),
    "tasks list": _REGISTRY,
    "tasks show": _REGISTRY,
    "tasks create": _REGISTRY,
    "tasks cancel": _REGISTRY,
    "tasks review": _REGISTRY,
    "tasks resolve": _REGISTRY,
    "tasks top-up": _REGISTRY,
    "run": _row(
        "done, or drained",
        "refused by the registry",
        "no usable answer from the registry",
        incomplete=(
            "with --task or --once: the run ended without a result. Always: COMMAND could not be started, "
            "or no workspace could be created. The command's own exit code is not passed on; --json "
            "reports it"
        ),
        no_input="no task arrived within --wait",
    ),
    "events list": _REGISTRY,
    "events tail": _row(
        "ended by Ctrl-C or SIGTERM",
        "refused by the registry, or the key is no longer valid",
        "no usable answer for an hour, or at the start for 10 s",
    ),
    "events verify": _row("log and states are unchanged", "the log or a state was changed", _UNREADABLE),
    "monitor show": _REGISTRY,
    "monitor release": _REGISTRY,
    "monitor confirm": _REGISTRY,
    "watch-activity opencode": _row(
        "ended by Ctrl-C or SIGTERM",
        "at the start: refused by the registry",
        "at the start: the server at URL is not an opencode server",
    ),
    "mcp": _row("the client disconnected, or ended by a signal", "it cannot serve", ""),
    "serve": _row(
        "ended by a signal",
        "it cannot serve: the address is in use, or the database is not the one that this host knows",
        _UNREADABLE,
    ),
    "migrate": _row("the database has this version's revision", "a server uses the database", _UNREADABLE),
    "doctor": _row("no fault was found", "at least one fault was found", ""),
    "completion": _row("printed", "", ""),
    "keys create": _row("created", "not created", _UNREADABLE),
    "keys list": _row("done", "", _UNREADABLE),
    "keys rotate": _row("rotated", "there is no such key, or it is no longer valid", _UNREADABLE),
    "keys limit": _row("changed", "there is no such key, or it is no longer valid", _UNREADABLE),
    "keys confirm": _row("confirmed", "there is no such key, or it is no longer valid", _UNREADABLE),
    "keys revoke": _row("revoked", "there is no such key", _UNREADABLE),
    "database adopt": _row(
        "serve accepts the database", "nothing was changed: a server uses the database", _UNREADABLE
    ),
    "backup": _row("written", "not written", _UNREADABLE),
    "restore": _row(
        "restored",
        "nothing was changed: the database is not empty, or is in use",
        _UNREADABLE,
        "wrong usage, or FILE is not a whole backup of this version or an older one",
    ),
})  # fmt: skip
"""Exit codes of every command. Each may also end with READER_LEFT."""


def exit_code_help(command: str) -> str | None:
    """Return the paragraph about exit codes for a command's help; None if the table has none for it."""
    row = COMMANDS.get(command)
    if row is None:
        return None
    head = "Exit codes, as of monitoring plugins:" if command == "check" else "Exit codes:"
    lines = (
        fill(text, _WIDTH, initial_indent=f"  {int(code)} ", subsequent_indent=" " * 4)
        for code, text in row.items()
    )
    return "\n".join(("\b", head, *lines))
