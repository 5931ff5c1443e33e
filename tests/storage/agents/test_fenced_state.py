from dataclasses import replace

from lifesign.storage.agents import fenced_state
from lifesign.storage.agents.fenced_state import StoredState
from lifesign.storage.engine.transaction import Database

STATE = StoredState(
    resource="intent:i/s",
    state={"notes": ["ä", None, 1.5, {"deep": "\x00"}], "empty": {}},
    version=1,
    token=7,
    holder="agent-1",
    written_at_s=1_763_640_000.123456,
)


async def test_fenced_state_is_read_as_last_written(database: Database) -> None:
    assert await database.read(lambda transaction: fenced_state.find(transaction, STATE.resource)) is None
    await database.write(lambda transaction: fenced_state.write(transaction, STATE))
    assert await database.read(lambda transaction: fenced_state.find(transaction, STATE.resource)) == STATE
    later = replace(STATE, state={}, version=2, token=8, holder="agent-2")
    await database.write(lambda transaction: fenced_state.write(transaction, later))
    assert await database.read(lambda transaction: fenced_state.find(transaction, STATE.resource)) == later
    assert await database.read(lambda transaction: fenced_state.find(transaction, "intent:i/other")) is None
