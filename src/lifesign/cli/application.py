"""The commands, and how they end."""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from lifesign.cli.commands.agents import agents
from lifesign.cli.commands.backup import backup, restore
from lifesign.cli.commands.census import census
from lifesign.cli.commands.check import check
from lifesign.cli.commands.crawl import crawl
from lifesign.cli.commands.credentials import credentials
from lifesign.cli.commands.database import database, migrate
from lifesign.cli.commands.directories import directories
from lifesign.cli.commands.drain import deregister_agent, drain_agent, send_command
from lifesign.cli.commands.erase import erase
from lifesign.cli.commands.events import events
from lifesign.cli.commands.history import compare, history, versions
from lifesign.cli.commands.keys import keys
from lifesign.cli.commands.link import link
from lifesign.cli.commands.maintenance import maintenance
from lifesign.cli.commands.mcp import mcp
from lifesign.cli.commands.monitor import monitor
from lifesign.cli.commands.probe import probe
from lifesign.cli.commands.recheck import recheck
from lifesign.cli.commands.run import run as run_adapter
from lifesign.cli.commands.serve import serve
from lifesign.cli.commands.targets import targets
from lifesign.cli.commands.tasks import tasks
from lifesign.cli.commands.validate import validate
from lifesign.cli.commands.watch_activity import watch_activity
from lifesign.cli.doctor.command import doctor
from lifesign.cli.options.config_file import usage_error_text, usage_hint
from lifesign.cli.options.shell_completion import completion, is_completion_request
from lifesign.cli.output.error_lines import complain, complain_of
from lifesign.cli.output.exit_codes import ExitCode, exit_code_help, exit_code_of
from lifesign.errors import LifesignError

_CONTEXT = {"help_option_names": ["-h", "--help"]}

# Rich would triple the time of `--help`; typer's own completion would add options to every command.
_application = typer.Typer(
    name="lifesign",
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=_CONTEXT,
)


def run(arguments: Sequence[str] | None) -> int:
    """Run one command and return its exit code; an error is one line of explanation on standard error."""
    is_completion = is_completion_request()
    try:
        exit_code = _command()(arguments, prog_name="lifesign", standalone_mode=False)
    except TyperException as error:
        context = getattr(error, "ctx", None)
        # typer does not name an option without its value.
        command = _named_command(arguments) if context is None else context.command_path
        complain(f"{usage_error_text(error)} (see {command} --help)", hint=usage_hint(error))
        return ExitCode.USAGE
    except LifesignError as error:
        complain_of(error)
        return exit_code_of(error)
    except SystemExit:
        # typer ends with 1 if the reader has left, which would mean degraded.
        return ExitCode.SUCCESS if is_completion else ExitCode.READER_LEFT
    return exit_code if isinstance(exit_code, int) else 0


@cache
def _command() -> Callable[..., Any]:
    """Return the tree of commands, which takes longer to build than most commands to run."""
    return typer.main.get_command(_application)


def _named_command(arguments: Sequence[str] | None) -> str:
    """Return the command that the first arguments name, as it is typed."""
    named: list[str] = ["lifesign"]
    command: object = _command()
    for word in sys.argv[1:] if arguments is None else arguments:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        named.append(word)
    return " ".join(named)


def _print_version(is_requested: bool) -> None:  # noqa: FBT001 - typer calls it so
    if is_requested:
        from importlib import metadata  # noqa: PLC0415 - costs 10 ms, which `--help` need not pay

        sys.stdout.write(f"lifesign {metadata.version('lifesign')}\n")
        raise typer.Exit


@_application.callback(invoke_without_command=True)
def _lifesign(
    context: typer.Context,
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> int:
    """Say whether an AI agent works.

    \b
    Examples:
      lifesign check https://agent.example
      lifesign validate health.json
      lifesign probe https://agent.example
      lifesign census urls.txt --contact mailto:you@example.org
      lifesign agents list
      lifesign tasks list
      lifesign run --pool coder -- ./agent.sh
      lifesign events tail
      lifesign serve
      lifesign doctor

    \b
    Every command explains itself, its exit codes too:
      lifesign check --help
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    if context.invoked_subcommand is None:
        sys.stderr.write(context.get_help() + "\n")
        return ExitCode.USAGE
    return ExitCode.SUCCESS


_application.command(context_settings=_CONTEXT)(check)
_application.command(context_settings=_CONTEXT)(validate)
_application.command(context_settings=_CONTEXT)(probe)
_application.command(context_settings=_CONTEXT)(crawl)
_application.command(context_settings=_CONTEXT)(census)
_application.command(context_settings=_CONTEXT)(recheck)
_application.add_typer(targets, context_settings=_CONTEXT)
_application.add_typer(directories, context_settings=_CONTEXT)
agents.command("drain")(drain_agent)
agents.command("deregister")(deregister_agent)
agents.command("command")(send_command)
agents.command()(history)
agents.command()(versions)
agents.command()(compare)
agents.command()(maintenance)
agents.command()(link)
agents.command()(erase)
_application.add_typer(agents, context_settings=_CONTEXT)
_application.add_typer(tasks, context_settings=_CONTEXT)
_application.command("run", context_settings={**_CONTEXT, "allow_interspersed_args": False})(run_adapter)
_application.add_typer(events, context_settings=_CONTEXT)
_application.add_typer(monitor, context_settings=_CONTEXT)
_application.add_typer(watch_activity, context_settings=_CONTEXT)
_application.command(context_settings=_CONTEXT)(mcp)
_application.command(context_settings=_CONTEXT)(serve)
_application.command(context_settings=_CONTEXT)(migrate)
_application.command(context_settings=_CONTEXT)(doctor)
_application.command(context_settings=_CONTEXT)(completion)
_application.add_typer(credentials, context_settings=_CONTEXT)
_application.add_typer(keys, context_settings=_CONTEXT)
_application.add_typer(database, context_settings=_CONTEXT)
_application.command(context_settings=_CONTEXT)(backup)
_application.command(context_settings=_CONTEXT)(restore)


def _explain_exit_codes(group: typer.Typer, path: str = "") -> None:
    """Put the exit codes of each command below its `--help`."""
    for command in group.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        command.epilog = exit_code_help(f"{path} {name}".strip())
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            _explain_exit_codes(inner.typer_instance, str(inner.typer_instance.info.name))


_explain_exit_codes(_application)
