"""The file behind the URL of an SQLite database."""

from pathlib import Path

from lifesign.errors import InvalidValue


def check_exists(url: str) -> None:
    """Refuse an SQLite file that does not exist, since opening would create it."""
    file = sqlite_file(url)
    if file is not None and not file.exists():
        raise InvalidValue("database", str(file), "an existing file")


def sqlite_file(url: str) -> Path | None:
    """Return the file of an SQLite database; None for any other."""
    file = url.removeprefix("sqlite:///").partition("?")[0]
    return Path(file) if url.startswith("sqlite:///") else None
