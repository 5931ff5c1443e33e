"""The project itself: its page, and how it and its extras are installed."""

from importlib import import_module
from types import ModuleType
from typing import Final

PROJECT_URL: Final[str] = ""
"""The project's repository, without a slash at its end; empty until the project has one.

It is in the User-Agent of requests that name no contact, and in the links of the description on PyPI. While
it is empty, crawls and censuses of public addresses require `contact`.
"""


DISTRIBUTION: Final[str] = "."
"""The name that `pip install` takes: "." in a checkout until the first release, then "lifesign".

`make schemas` writes it into README and docs.
"""


def install_command(*extras: str) -> str:
    """Return the command that installs lifesign with these extras."""
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'" if extras else f"pip install {DISTRIBUTION}"


def install_hint(*extras: str) -> str:
    """Return a hint with the command that installs these extras, and where to run it."""
    place = " in a checkout of lifesign" if DISTRIBUTION == "." else ""
    return f"run {install_command(*extras)}{place}"


def import_with_extra(module: str, extra: str) -> ModuleType:
    """Import a module. If it needs a package that is missing, the error names the extra to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        error.add_note(f"hint: {install_hint(extra)}")
        raise


def project_suffix(contact: str | None = None) -> str:
    """Return the comment for a User-Agent, after a space: the contact, else the URL of lifesign's page.

    Empty if there is neither.
    """
    about = contact or PROJECT_URL
    return f" (+{about})" if about else ""
