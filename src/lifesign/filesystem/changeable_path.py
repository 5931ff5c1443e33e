"""Paths whose file another user could change or replace, as modes and owners show it.

The rule is that of OpenSSH for keys (`StrictModes`). The file, each directory above it and each symbolic link
on the way belong to root or to this user, and no one else may write to them. OpenSSH also follows the path to
the root, since a user who can rename a directory can replace all files in it. There are two differences. A
sticky directory such as /tmp may be writable: its entries can only be replaced by their owners. The group of
this process may write if it is the user's own: with a umask of 002, the usual one where each user has a group
of their own, all files are writable for it.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final

SYSTEMD_DIRECTORY: Final = "CREDENTIALS_DIRECTORY"
"""Environment variable with the directory of systemd's credentials."""
TRUSTED_DIRECTORIES: Final = ("/run/secrets", "/var/run/secrets")
"""Docker and Kubernetes mount secrets here, and set the owners and modes of the files."""
MAX_LINKS: Final = 40
"""Maximum number of symbolic links on a path, as in Linux."""


@dataclass(frozen=True, slots=True)
class PathWeakness:
    """A part of a path that lets other users change or replace its file."""

    reason: str
    """The file, directory or link, and what is wrong with it."""
    remedy: str
    """Command that corrects it."""


def path_weakness(file: Path, opened: os.stat_result) -> PathWeakness | None:
    """Return what lets other users change or replace the file that was opened as `file`; None if they cannot.

    `opened` describes the open file, which must still be the one at this path. Directories that systemd,
    Docker or Kubernetes manage are not examined, nor what is below them, nor terminals, nor pipes without a
    name (`<(...)`).
    """
    if stat.S_ISCHR(opened.st_mode):
        return None
    managed, found = _managed_directories(), None
    try:
        for place, found in _steps(file):
            if found is None:
                break
            if place in managed or _is_unnamed(place, found):
                return None
            if (weakness := _weakness(place, found)) is not None:
                return weakness
    except OSError:
        found = None
    if found is not None and os.path.samestat(found, opened):
        return None
    return PathWeakness(f"{file} was replaced while it was read", f"ls -l {quote(str(file))}")


def foreign_owner(file: Path, found: os.stat_result) -> int | None:
    """Return the user id of a file that another user may have created in a shared directory; else None.

    None for files of root and of this user. A file whose directory has the same owner or group also passes:
    root uses the files of a service in the directory of that service.
    """
    directory = file.parent.stat()
    is_trusted = found.st_uid in {0, os.geteuid(), directory.st_uid} or found.st_gid == directory.st_gid
    return None if is_trusted else found.st_uid


def target_of(file: Path) -> Path | PathWeakness:
    """Return the file to which a path leads, or what lets other users change or replace it.

    The file may be missing: it is for a file that is going to be written. OSError for a missing directory.
    """
    managed, place = _managed_directories(), file
    for place, found in _steps(file):
        if place in managed:
            return file.resolve()
        if found is not None and (weakness := _weakness(place, found)) is not None:
            return weakness
    return place


def is_managed(file: Path, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a file is in a directory whose modes systemd, Docker or Kubernetes set."""
    place = file.resolve()
    return any(place.is_relative_to(each) for each in _managed_directories(environment))


def _managed_directories(environment: Mapping[str, str] = os.environ) -> set[Path]:
    directories = [*TRUSTED_DIRECTORIES, environment.get(SYSTEMD_DIRECTORY)]
    return {Path(each).resolve() for each in directories if each}


def _is_unnamed(place: Path, found: os.stat_result) -> bool:
    """Return whether a path leads to an open file without a name, as `/dev/fd/63` may."""
    is_descriptor = stat.S_ISLNK(found.st_mode) and place.parent.match("/proc/*/fd")
    return is_descriptor and not place.readlink().is_absolute()


def _weakness(place: Path, found: os.stat_result) -> PathWeakness | None:
    shown, uid = quote(str(place)), os.geteuid()
    if found.st_uid not in {0, uid}:
        return PathWeakness(f"{place} belongs to user {found.st_uid}", f"chown -h {uid} {shown}")
    if stat.S_ISLNK(found.st_mode) or (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
        return None
    reason = f"{place} has mode {stat.S_IMODE(found.st_mode):04o}"
    if found.st_mode & stat.S_IWOTH:
        return PathWeakness(reason, f"chmod o-w {shown}")
    if found.st_mode & stat.S_IWGRP and has_access_list(place):
        return PathWeakness(
            f"{place} has an access control list that lets others write", f"setfacl -b {shown}"
        )
    gid = found.st_gid
    if found.st_mode & stat.S_IWGRP and not (gid == os.getegid() and is_own_group(gid, uid)):
        return PathWeakness(f"{reason} and group {gid}", f"chmod g-w {shown}")
    return None


def is_own_group(gid: int, uid: int) -> bool:
    """Return whether a group is the user's own, or that of root, and has no other members.

    Its name must be that of the user, as for the umask 002 that `pam_umask` sets (`usergroups`). It does not
    notice accounts that have it as their primary group: many directory services do not list their accounts.
    """
    import grp  # noqa: PLC0415 - clients import this file on Windows too
    import pwd  # noqa: PLC0415

    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        # Usual in a container.
        user = str(uid)
    try:
        group = grp.getgrgid(gid)
        name, members = group.gr_name, group.gr_mem
    except KeyError:
        name, members = str(gid), []
    return (gid == 0 or name == user) and {*members} <= {user, "root"}


def has_access_list(place: Path) -> bool:
    """Return whether more users and groups than the mode shows have access (POSIX ACL).

    The bits of the group are then the most that any of them may do.
    """
    if not hasattr(os, "getxattr"):
        return False
    try:
        return bool(os.getxattr(place, "system.posix_acl_access", follow_symlinks=False))
    except OSError:
        return False


def _steps(file: Path) -> Iterator[tuple[Path, os.stat_result | None]]:
    """Yield each directory, link and file on the way to a file, links included.

    None for a file that is missing; OSError for a missing directory.
    """
    place, links = Path("/"), 0
    left = [*reversed(file.absolute().parts[1:])]
    yield place, place.lstat()
    while left:
        name = left.pop()
        if name == "..":
            place = place.parent
            continue
        step = place / name
        try:
            found = step.lstat()
        except FileNotFoundError:
            if left:
                raise
            yield step, None
            return
        yield step, found
        if not stat.S_ISLNK(found.st_mode):
            place = step
        elif links < MAX_LINKS:
            links += 1
            target = step.readlink()
            if target.is_absolute():
                place = Path("/")
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
