"""Pipes between the processes of a crawl, read in an event loop."""

import asyncio
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def add_pipe_reader(
    loop: asyncio.AbstractEventLoop, pipe: Connection, function: Callable[..., object], *arguments: Any
) -> None:
    """Call a function whenever a pipe has something to read. The pipe stays blocking.

    uvloop makes it non-blocking. Then a message would be cut off if it does not fit into the pipe, or if its
    end has not come yet.
    """
    loop.add_reader(pipe.fileno(), function, *arguments)
    os.set_blocking(pipe.fileno(), True)
