"""User of an agent, if not the adapter's own, and that user's access."""

import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lifesign.errors import InvalidValue

_SEARCH_BITS = (stat.S_IXUSR, stat.S_IXGRP, stat.S_IXOTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentUser:
    """A user of this machine with fewer rights than root."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    """All groups of the user."""
    home: str
    login_shell: str

    @classmethod
    def named(cls, name: str) -> "AgentUser":
        """Return the user with this name; InvalidValue if the adapter cannot start processes as this user."""
        if os.geteuid() != 0:
            raise InvalidValue("--user", name, "root, who alone may start processes of another user")
        try:
            found = pwd.getpwnam(name)
        except (KeyError, ValueError):
            raise InvalidValue("--user", name, "a user of this machine") from None
        if found.pw_uid == 0:
            raise InvalidValue("--user", name, "a user that is not root")
        groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid))
        return cls(
            name=found.pw_name,
            uid=found.pw_uid,
            gid=found.pw_gid,
            groups=groups,
            home=found.pw_dir,
            login_shell=found.pw_shell or "/bin/sh",
        )

    def environment(self) -> dict[str, str]:
        """Return the environment variables that describe the user, such as HOME and USER."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.login_shell}

    @contextmanager
    def rights(self) -> Iterator[None]:
        """Give the whole process this user's rights until the block ends; PermissionError if it cannot."""
        groups, gid, uid = os.getgroups(), os.getegid(), os.geteuid()
        try:
            os.setgroups(self.groups)
            os.setegid(self.gid)
            os.seteuid(self.uid)
            yield
        finally:
            os.seteuid(uid)
            os.setegid(gid)
            os.setgroups(groups)

    def unsearchable_directory(self, directory: Path) -> str:
        """Return the first directory on this path that the user cannot enter; empty if there is none."""
        for one in (*reversed(directory.resolve().parents), directory.resolve()):
            found = one.stat()
            whose = 0 if found.st_uid == self.uid else 1 if found.st_gid in self.groups else 2
            if not found.st_mode & _SEARCH_BITS[whose]:
                return f"{one} has mode {stat.S_IMODE(found.st_mode):04o} and user {found.st_uid}"
        return ""
