"""Drives a whole registry by a state machine, on either database, with a clock set by hand."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test
from tests.support.databases import WoundClock, create_tables, empty_postgresql
from tests.support.properties import examples
from tests.support.registry_api import RegistryApi

from lifesign.registry.events.verify_events import verify_log
from lifesign.storage.engine.database import open_database

T = TypeVar("T")


class RegistryMachine(RuleBasedStateMachine):
    """Steps of a test, all in one event loop, against a registry of their own."""

    kind = "sqlite"

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = WoundClock()
        self.run(self._open())

    def teardown(self) -> None:
        self.run(self.api.database.close())
        self.runner.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    async def _open(self) -> None:
        if self.kind == "sqlite":
            database = open_database("sqlite://", clock=self.clock.now_s)
            await create_tables(database)
        else:
            database = open_database(empty_postgresql(), clock=self.clock.now_s)
        self.api = RegistryApi(database, self.clock)
        await self.api.add_keys()

    @invariant()
    def the_log_proves_what_is_stored(self) -> None:
        report = self.run(self.api.database.read(verify_log))
        assert report.is_good, (report.fault, report.differences)


def drive(machine: type[RegistryMachine], kind: str, *, runs: int, steps: int) -> None:
    """Let Hypothesis look for steps after which the machine's registry is not as it should be.

    `runs` is scaled by `examples`.
    """
    run_state_machine_as_test(
        type(f"{kind.title()}{machine.__name__}", (machine,), {"kind": kind}),
        settings=settings(
            max_examples=examples(runs),
            stateful_step_count=steps,
            suppress_health_check=list(HealthCheck),
        ),
    )
