"""The file behind the URL of an SQLite database."""

from pathlib import Path
from typing import TYPE_CHECKING

from lifesign.errors import InvalidValue

if TYPE_CHECKING:
    # The command line imports this module, and SQLAlchemy takes 100 ms.
    from sqlalchemy.engine import URL


def check_exists(url: str) -> None:
    """Refuse an SQLite file that does not exist, since opening would create it."""
    file = sqlite_file(url)
    if file is not None and not file.exists():
        raise InvalidValue("database", str(file), "an existing file")


def sqlite_file(url: str) -> Path | None:
    """Return the file of an SQLite database; None for any other."""
    file = url.removeprefix("sqlite:///").partition("?")[0]
    return Path(file) if url.startswith("sqlite:///") else None


def absolute_file(url: "URL") -> Path | None:
    """Return the absolute path of that file; None for another database, and for one in memory."""
    if url.get_backend_name() != "sqlite" or url.database in {None, "", ":memory:"}:
        return None
    return Path(str(url.database)).absolute()
