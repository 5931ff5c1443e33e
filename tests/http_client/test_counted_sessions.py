import asyncio
from collections import Counter

import pytest
from tests.support.hostile_server import kept, serving, silence

from lifesign.http_client.counted_sessions import ByteCountingConnector, counting_session

PATH = "/thing"


async def test_tasks_that_send_without_a_pause_share_the_connections() -> None:
    tasks, total = 4, 100
    answers = Counter[int]()

    async with (
        serving({PATH: kept()}, keeps_alive=True) as server,
        counting_session(ByteCountingConnector(limit=tasks // 2)) as session,
    ):

        async def send(task: int) -> None:
            while answers.total() < total:
                async with session.get(server.url + PATH) as response:
                    await response.read()
                answers[task] += 1

        await asyncio.gather(*map(send, range(tasks)))
    assert min(answers[task] for task in range(tasks)) > total // tasks // 2
    assert server.connections == tasks // 2


async def test_failed_and_cancelled_requests_give_their_turn_back() -> None:
    async with (
        serving({PATH: kept(), "/silent": silence}) as server,
        counting_session(ByteCountingConnector(limit=1)) as session,
    ):
        for url in ("http://127.0.0.1:1/", server.url + "/silent"):
            with pytest.raises((OSError, TimeoutError)):
                async with asyncio.timeout(0.1), session.get(url):
                    pass
        waiting = [asyncio.create_task(session.get(server.url + "/silent")) for _ in range(3)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        async with session.get(server.url + PATH) as response:
            assert response.status == 200
