"""Actions of a crawl's process in tests of its pool.

Imports little: each process of those tests imports it again.
"""

import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from lifesign.crawl.worker_config import EXIT_SHARDS_WITHHELD, EXIT_UNFINISHED, WorkerConfig, WorkerStatus
from lifesign.domain.observation.results import ResultClass
from lifesign.loopback.listeners import IN_THIS_PROCESS, ServerUsers
from lifesign.prober.worker.progress_counts import Progress

STANDING = Progress(
    shards=512,
    targets=100,
    probed=10,
    classes={ResultClass.OK: 4, ResultClass.REFUSED: 6},
    missed=0,
    rate_per_s=1.0,
    in_flight=0,
    waiting=0,
    left=None,
    seconds_left=None,
    start_error_p99_ms=3.0,
    held=0,
    reported=10,
    given_up=0,
    is_ledger_unreachable=False,
    slowness=None,
)


def act(share: WorkerConfig, pipe: Connection) -> None:
    """Act in a separate process as the file of this name describes."""
    place = Path(f"{share.database}-{share.worker}")
    role = place.read_text()
    match role:
        case "finish":
            pipe.send(WorkerStatus(progress=STANDING))
            sys.exit(0)
        case "long message":
            pipe.send(WorkerStatus(line="x" * 5_000_000))
            sys.exit(0)
        case "unfinished":
            sys.exit(EXIT_UNFINISHED)
        case "die once":
            place.write_text("finish")
            pipe.send(WorkerStatus(progress=STANDING))
            os.kill(os.getpid(), signal.SIGKILL)
        case "learn and die":
            place.write_text("show what is known")
            pipe.send(WorkerStatus(first_users={7: ServerUsers(1000, None)}))
            os.kill(os.getpid(), signal.SIGKILL)
        case "show what is known":
            pipe.send(WorkerStatus(line=f"port 7: {[*IN_THIS_PROCESS.first_users[7]]}"))
            sys.exit(0)
        case "die always":
            sys.exit(1)
        case "held up":
            pipe.send(WorkerStatus(withheld=("the disk is full", 120.0)))
            sys.exit(EXIT_SHARDS_WITHHELD)
        case "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pipe.send(WorkerStatus(line="at work"))
    time.sleep(60)
