"""Start of worker processes: as forks of one process, the fork server, which has loaded their modules.

A fork is ready in a tenth of the time of a new interpreter, and shares the memory of the modules. The fork
server is started with the first worker. It ends with its last worker and the process that starts them. If it
is killed, the exit codes of its workers are unknown, and the next start of a worker starts another one.
"""

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext, ForkServerProcess, SpawnContext, SpawnProcess
from typing import Any, Final, TypeAlias

from lifesign.filesystem.core_dumps import forbid_core_dumps
from lifesign.loopback.listeners import IN_THIS_PROCESS, ServerUsers

EXIT_UNKNOWN: Final = 255
"""Exit code that multiprocessing reports if the fork server was killed, also for a living worker."""
SET_UP: Final = "lifesign.serving.fork_server"
"""Module that the fork server loads first."""
_SAFE_PATH: Final = "PYTHONSAFEPATH"

WorkerContext: TypeAlias = ForkServerContext | SpawnContext
WorkerProcess: TypeAlias = ForkServerProcess | SpawnProcess

_log = logging.getLogger("lifesign.serving")


@contextmanager
def safe_module_path() -> Iterator[None]:
    """Start no process of multiprocessing that imports modules from the working directory.

    It starts its fork server, its resource tracker and each spawned worker with `python -c`, which looks
    there first: another user may be allowed to create files in it. Only for one thread of a process.
    """
    former = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if former is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = former


def start_worker(
    new_process: Callable[[WorkerContext], WorkerProcess], modules: Sequence[str]
) -> WorkerProcess:
    """Start the process that `new_process` returns; return it.

    `modules`: what a worker imports, the same for all workers of this process.
    """
    with safe_module_path():
        return _started(new_process, modules)


def _started(new_process: Callable[[WorkerContext], WorkerProcess], modules: Sequence[str]) -> WorkerProcess:
    try:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([SET_UP, *modules])
        process = new_process(context)
        process.start()
    except (EOFError, OSError, ValueError) as error:
        # The fork server has a socket in the directory for temporary files, which can be full or read-only.
        # ValueError: the platform has no fork server. EOFError: the fork server was killed meanwhile.
        _log.warning("a worker process could not be forked, and loads all modules itself: %r", error)
        process = new_process(multiprocessing.get_context("spawn"))
        process.start()
    return process


def main_with_listeners(main: Callable[..., None], *arguments: Any) -> dict[str, Any]:
    """Return the arguments of a process that runs `main`, and knows the users of this machine's servers.

    Without them, a process that starts while a server is down would send its secrets to another user's.
    """
    return {"target": _run_with_listeners, "args": (IN_THIS_PROCESS.first_users, main, *arguments)}


def _run_with_listeners(
    first_users: Mapping[int, ServerUsers], main: Callable[..., None], *arguments: Any
) -> None:
    # It receives secrets, and inherits the limit of its parent, but not its flag.
    forbid_core_dumps()
    IN_THIS_PROCESS.learn(first_users)
    main(*arguments)


def death_text(exit_code: int | None) -> str:
    """Return the exit code, or the signal, of a worker that has ended, as log lines show it."""
    code = exit_code or 0
    if code == EXIT_UNKNOWN:
        return "its exit code is unknown, because the fork server was killed"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
