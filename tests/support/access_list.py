"""Access control lists (POSIX ACL) of files."""

import os
import struct
from pathlib import Path

import pytest


def give_access(file: Path, permissions: int) -> None:
    """Let user 65534 use a file with these permissions (4 to read, 2 to write), by an access control list.

    Its owner may read and write, its group may read. Without such lists, the test is skipped.
    """
    # Version 2; owner, user 65534, group, mask, others.
    entries = [(1, 6, -1), (2, permissions, 65534), (4, 4, -1), (16, permissions, -1), (32, 0, -1)]
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(file, "system.posix_acl_access", value)
    except OSError as error:
        pytest.skip(f"NOT TESTED: the file system has no access control lists ({error.strerror})")
