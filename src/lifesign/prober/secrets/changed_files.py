"""Files of credentials that are read again after a change, until that succeeds."""

import logging
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from lifesign.errors import InvalidValue

Stamp = TypeVar("Stamp")
Value = TypeVar("Value")

_log = logging.getLogger("lifesign.prober")


class ChangedFiles(Generic[Stamp]):
    """Detects changes of the files of credentials, by a stamp for each credential."""

    def __init__(self, what: str, stamps: Mapping[str, Stamp]) -> None:
        """`what`: content of the files, for logs. `stamps`: by the names of the credentials."""
        self._what = what
        self._stamps = dict(stamps)
        self._faults: dict[str, str] = {}

    def read_again(
        self, name: str, stamp: Stamp, read: Callable[[Callable[[str], None]], Value]
    ) -> Value | None:
        """Read a credential's files if they have changed or failed before; return the new value, else None.

        A certificate may not be valid yet, or this machine may lack file descriptors. `read` raises
        InvalidValue if it fails; its argument receives warnings.
        """
        has_changed = stamp != self._stamps[name]
        if not has_changed and name not in self._faults:
            return None
        self._stamps[name] = stamp
        try:
            value = read(_log.warning if has_changed else _ignore)
        except InvalidValue as error:
            if has_changed or self._faults.get(name) != str(error):
                _log.warning(
                    (
                        "the changed %s of the credential %s could not be read, so the last one stays in "
                        "use: %s"
                    ),
                    self._what,
                    name,
                    error,
                )
            self._faults[name] = str(error)
            return None
        self._faults.pop(name, None)
        _log.warning("the %s of the credential %s was read again", self._what, name)
        return value


def _ignore(_warning: str) -> None:
    """Log no warning a second time."""
