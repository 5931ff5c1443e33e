"""Core dumps of this process: they would contain its secrets."""

import resource


def forbid_core_dumps() -> None:
    """Disable core dumps of this process, because they would contain secrets."""
    # Linux ignores a limit of 0 if `core_pattern` names a program. With 1 it starts none (fs/coredump.c).
    limit = 0 if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
