"""Pipes between the processes of a crawl, read in an event loop."""

import asyncio
import threading
from multiprocessing import Pipe

import pytest
import uvloop

from lifesign.crawl.pipe_reader import add_pipe_reader


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_message_that_is_larger_than_the_pipe_arrives_as_a_whole(run: type) -> None:
    ours, theirs = Pipe()
    sent = "x" * 1_000_000

    async def received() -> object:
        loop = asyncio.get_running_loop()
        message = loop.create_future()
        add_pipe_reader(loop, ours, lambda: message.set_result(ours.recv()))
        add_pipe_reader(loop, theirs, lambda: None)
        sending = threading.Thread(target=theirs.send, args=(sent,))
        sending.start()
        try:
            return await message
        finally:
            sending.join()
            loop.remove_reader(ours.fileno())
            loop.remove_reader(theirs.fileno())

    with ours, theirs:
        assert run(received()) == sent
