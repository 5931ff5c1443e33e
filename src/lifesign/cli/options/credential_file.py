"""The option `--credential`, which every command has that probes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lifesign.errors import InvalidValue

if TYPE_CHECKING:
    from lifesign.prober.definition.credentials import CredentialSettings
    from lifesign.prober.definition.models import ProbeDefinition

CredentialFile = Annotated[
    Path | None,
    typer.Option(
        "--credential",
        metavar="FILE",
        help="YAML file whose `credentials` are used instead of those of the definition.",
    ),
]


def with_credentials(definition: "ProbeDefinition", file: Path | None) -> "ProbeDefinition":
    """Return the definition with the credentials of a file in place of its own; unchanged without a file.

    Variables with secrets that are not needed any more leave the environment. InvalidDefinition or
    InvalidValue for a file that cannot be used.
    """
    if file is None:
        return definition
    from lifesign.prober.definition.file import read_credential_file  # noqa: PLC0415 - takes 200 ms
    from lifesign.prober.secrets.secret_reader import forget_variables  # noqa: PLC0415

    credentials = read_credential_file(file)
    forget_variables(definition.credentials, needed_by=credentials)
    return definition.model_copy(update={"credentials": credentials})


def chosen_credential(definition: "ProbeDefinition", name: str, file: Path) -> "CredentialSettings":
    """Return the credential with this name; InvalidValue if the definition, read from `file`, has none."""
    known = {each.name: each for each in definition.credentials}
    if name not in known:
        expected = f"one of {', '.join(known)}" if known else f"a credential, and {file} has none"
        raise InvalidValue("NAME", name, expected)
    return known[name]
