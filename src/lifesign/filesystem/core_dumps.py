"""Core dumps of this process: they would contain its secrets."""


def forbid_core_dumps() -> None:
    """Disable core dumps of this process, because they would contain secrets."""
    try:
        import resource  # noqa: PLC0415 - absent outside of Unix
    except ImportError:
        return
    # Linux ignores a limit of 0 if `core_pattern` names a program. With 1 it starts none (fs/coredump.c).
    limit = 0 if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
