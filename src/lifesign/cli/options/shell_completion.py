"""Shell completion of commands and options."""

import os
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final

import typer

VARIABLE: Final = "_LIFESIGN_COMPLETE"
"""Set by the scripts below when a shell asks for completions."""


class Shell(StrEnum):
    """Shells with a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[
        Shell, typer.Argument(metavar="bash|zsh|fish", help="Shell for which the script is printed.")
    ],
) -> int:
    """Print the script by which a shell completes commands and options of lifesign.

    \b
    Examples:
      source <(lifesign completion bash)
      lifesign completion bash > ~/.local/share/bash-completion/completions/lifesign
      lifesign completion zsh > "${fpath[1]}/_lifesign"
      lifesign completion fish > ~/.config/fish/completions/lifesign.fish
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    from typer._completion_shared import get_completion_script  # noqa: PLC0415 - `--help` needs it not

    script = get_completion_script(prog_name="lifesign", complete_var=VARIABLE, shell=shell.value)
    sys.stdout.write(script + "\n")
    return 0


def offering(*values: str) -> Callable[[str], list[str]]:
    """Return a completion function that offers these values."""

    def offered(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return offered


def is_completion_request() -> bool:
    """Return whether a shell requests completions.

    Only then are the shells' classes loaded, which takes time.
    """
    if VARIABLE not in os.environ:
        return False
    from typer._completion_classes import completion_init  # noqa: PLC0415 - see above

    completion_init()
    return True
