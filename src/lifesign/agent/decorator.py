"""Decorator that makes a class an agent (RFC-0016 3.4)."""

import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar, Unpack

from lifesign.agent.default_logging import show_log
from lifesign.agent.drain import AgentEnd
from lifesign.agent.errors import InvalidAgent
from lifesign.agent.handler import is_own_failure
from lifesign.agent.profile import AgentProfile, ProfileSettings, for_another_run, given_profile
from lifesign.agent.runner import AgentRunner
from lifesign.agent.settings_validation import check_key_file, check_kinds, is_generator
from lifesign.agent.signal_handling import restore_handlers
from lifesign.errors import InvalidValue

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Beside = Callable[[AgentRunner], Awaitable[object]]

EXIT_USAGE: Final = 2
"""Exit code of a program without a required setting; as in argparse."""

_log = logging.getLogger("lifesign.agent")
_MARK = "__lifesign_part__"


class _Part(StrEnum):
    """Purpose of a method."""

    ON_ASSIGNMENT = "on_assignment"
    ON_DRAIN = "on_drain"


_ARGUMENTS: Mapping[_Part, int] = MappingProxyType({_Part.ON_ASSIGNMENT: 1, _Part.ON_DRAIN: 0})
"""Beside `self`."""


def on_assignment(method: F) -> F:
    """Mark the method to call with each task; it runs in a thread unless it is a coroutine."""
    return _marked(method, _Part.ON_ASSIGNMENT)


def on_drain(method: F) -> F:
    """Mark the method to call once, when the agent begins to drain."""
    return _marked(method, _Part.ON_DRAIN)


def run_agent(agent: object, beside: Beside | None = None) -> AgentEnd:
    """Run an object of a class with `@Agent` as an agent, until a signal or the registry ends it.

    beside: the rest of the program; called with the agent's runner once it is registered, and
        cancelled when it has left. If it calls `sys.exit` or raises an exception, the agent drains, and then
        the program ends with it.

    Events are logged (`lifesign.agent`), and shown on standard error if logging is not set up. Raise
    SystemExit with code 2, after one line there, for an invalid key or registry.
    """
    return _run(agent, beside)


def _run(agent: object, beside: Beside | None, **settings: Any) -> AgentEnd:
    """Run an object of a declared class; `settings` replace those of its declaration."""
    import asyncio  # noqa: PLC0415 - whoever only declares does not run

    show_log()

    async def run() -> tuple[AgentEnd, BaseException | None]:
        runner = AgentRunner.of(agent, **settings)
        _warn_without_work(agent, runner, beside, settings)
        accompanying = asyncio.create_task(_accompany(runner, beside))
        try:
            end = await runner.run()
        finally:
            accompanying.cancel()
            await asyncio.gather(accompanying, return_exceptions=True)
        return end, None if accompanying.cancelled() else accompanying.result()

    try:
        end, failure = asyncio.run(run())
    except InvalidValue as error:
        # The user can correct this, and needs no traceback.
        sys.stderr.write(f"{Path(sys.argv[0]).name or 'agent'}: {error}\n")
        raise SystemExit(EXIT_USAGE) from None
    if failure is not None:
        raise failure
    return end


def _warn_without_work(
    agent: object, runner: AgentRunner, beside: Beside | None, settings: Mapping[str, Any]
) -> None:
    """Log a warning if nothing can ever call the agent's @on_assignment."""
    declared = getattr(type(agent), "__lifesign__", None)
    if beside is None and not settings and isinstance(declared, Declared) and declared.takes_tasks is None:
        _log.warning(
            (
                "agent %s: nothing calls its @on_assignment. Pass tasks=True to @Agent for tasks of "
                "the registry, or assign work in the coroutine `beside` of run_agent"
            ),
            runner.agent_id,
        )


async def _accompany(runner: AgentRunner, beside: Beside | None) -> BaseException | None:
    """Run `beside`. If it ends the program or fails, drain the agent and return the exception.

    Otherwise the registry would show an agent as active whose program has ended.
    """
    if beside is None:
        return None
    await runner.registered()
    try:
        await beside(runner)
    except BaseException as error:
        if not (isinstance(error, SystemExit) or is_own_failure(error)):
            raise
        restore_handlers()
        if not runner.is_leaving:
            runner.drain("the coroutine `beside` has failed or ends the program")
        elif not isinstance(error, SystemExit):
            # It may have failed because the agent refuses work.
            _log.exception("agent %s: the coroutine `beside` raised an exception", runner.agent_id)
            return None
        if isinstance(error, SystemExit | Exception):
            return error
        # Outside of its task, a CancelledError would mean something else.
        failure = RuntimeError(f"the coroutine `beside` raised {type(error).__name__}")
        failure.__cause__ = error
        return failure
    if restore_handlers() and not runner.is_leaving:
        # The signal that has ended a web server did not reach the agent.
        runner.drain("the web server of its program, which handles signals, has ended")
    return None


@dataclass(frozen=True, slots=True)
class Declared:
    """What `@Agent` declares about a class: its profile, its handlers and other settings."""

    profile: AgentProfile
    handlers: Mapping[str, str]
    """Names of methods, by their purpose."""
    settings: Mapping[str, Any] = field(repr=False)
    """May contain a key."""
    takes_tasks: bool | None = None
    """Whether the registry assigns tasks to the agent; None if the declaration does not say."""

    def runner_settings(self, agent: object) -> dict[str, Any]:
        """Return the keyword arguments with which `AgentRunner` runs this object of the declared class.

        Without a given id, each call is for another agent: a class is declared once, before a program forks
        or runs it again.
        """
        handlers = {part: getattr(agent, name) for part, name in self.handlers.items()}
        tasks = bool(self.takes_tasks)
        return {"profile": for_another_run(self.profile), "tasks": tasks, **handlers, **self.settings}


class Agent:
    """Class decorator that declares a class as an agent. The class itself is not changed.

        @Agent("billing-01", role_id="billing-processor", capabilities=["billing"], capacity=5)
        class Billing:
            @on_assignment
            async def work(self, task): ...

            @on_drain
            async def leave(self): ...

        run_agent(Billing())

    The arguments are those of `AgentRunner`. The class gets a class method `run` unless it has one: see
    `run_class`. InvalidValue or InvalidAgent, where the class is declared, for what cannot be; whether
    there is a registry and a key is looked at when it is run.
    """

    def __init__(
        self,
        agent_id: str | None = None,
        *,
        profile: AgentProfile | None = None,
        tasks: bool | None = None,
        auto_heartbeat: bool = True,
        registry: str | None = None,
        key: str | None = None,
        key_file: str | Path | None = None,
        allow_plain_http: bool = False,
        **settings: Unpack[ProfileSettings],
    ) -> None:
        if agent_id is not None and not isinstance(agent_id, str):
            raise InvalidAgent("@Agent", 'its agent_id as the first argument, as in @Agent("billing-01")')
        check_kinds(
            profile=profile,
            tasks=False if tasks is None else tasks,
            auto_heartbeat=auto_heartbeat,
            registry=registry,
            key=key,
            key_file=key_file,
            allow_plain_http=allow_plain_http,
        )
        self.profile = given_profile(profile, agent_id, settings)
        check_key_file(self.profile, key_file)
        self._takes_tasks = tasks
        self._settings = {
            "auto_heartbeat": auto_heartbeat,
            "registry": registry,
            "key": key,
            "key_file": key_file,
            "allow_plain_http": allow_plain_http,
        }

    @classmethod
    def from_workflow(
        cls, file: str | Path, name: str, *, agent_id: str | None = None, **settings: Any
    ) -> Self:
        """Declare an agent by its entry in a workflow file (RFC-0016 12).

            @Agent.from_workflow("agents.yml", "billing-processor", agent_id="billing-01")

        Without an `agent_id` each process is another agent of its role, whose key ends with it and is kept
        in no `key_file`. `settings` are `tasks`, `auto_heartbeat`, `registry`, `key`, `key_file` and
        `allow_plain_http`.
        """
        return cls(profile=AgentProfile.from_workflow(file, name, agent_id), **settings)

    def __call__(self, declared: type[T]) -> type[T]:
        """Store the declaration on the class."""
        if not inspect.isclass(declared):
            raise InvalidAgent(_name_of(declared), "a class below @Agent(...)")
        where = declared.__qualname__
        if "__lifesign__" in vars(declared):
            raise InvalidAgent(where, "one @Agent(...)")
        handlers = _handlers_of(declared)
        if _Part.ON_ASSIGNMENT not in handlers:
            raise InvalidAgent(where, "a method with the decorator @on_assignment")
        note = Declared(
            self.profile, MappingProxyType(handlers), MappingProxyType(self._settings), self._takes_tasks
        )
        declared.__lifesign__ = note  # type: ignore[attr-defined]
        if not hasattr(declared, "run"):
            declared.run = classmethod(run_class)  # type: ignore[attr-defined]
        return declared


def run_class(declared: type, base_url: str | None = None, api_key: str | None = None) -> AgentEnd:
    """Create an object of a class with `@Agent`, and run it as an agent with tasks of the registry.

    It takes tasks of the registry unless the declaration says `tasks=False`: no other work can reach it.
    `base_url` and `api_key` replace the declaration's `registry` and `key`.
    """
    note = getattr(declared, "__lifesign__", None)
    takes_tasks = not (isinstance(note, Declared) and note.takes_tasks is False)
    given = {"registry": base_url, "key": api_key}
    settings = {name: value for name, value in given.items() if value is not None}
    return _run(declared(), None, tasks=takes_tasks, **settings)


def _marked(method: F, part: _Part) -> F:
    if not inspect.isfunction(method):
        raise InvalidAgent(_name_of(method), f"a method below @{part}, without parentheses")
    if hasattr(method, _MARK):
        raise InvalidAgent(
            method.__qualname__, f"one decorator: the method has @{getattr(method, _MARK)} already"
        )
    wanted = ["self", *["task"] * _ARGUMENTS[part]]
    try:
        inspect.signature(method).bind(*wanted)
    except TypeError:
        raise InvalidAgent(method.__qualname__, f"a method that takes ({', '.join(wanted)})") from None
    if is_generator(method):
        raise InvalidAgent(method.__qualname__, "a method that returns its result, without yield")
    setattr(method, _MARK, part)
    return method


def _handlers_of(declared: type) -> dict[str, str]:
    """Return the names of the marked methods, inherited ones too, by their purpose."""
    found: dict[str, str] = {}
    for name in dir(declared):
        part = getattr(inspect.getattr_static(declared, name), _MARK, None)
        if part is None:
            continue
        if part in found:
            both = f"{found[part]} and {name}"
            raise InvalidAgent(declared.__qualname__, f"one method with @{part}, not {both}")
        found[part] = name
    return found


def _name_of(thing: object) -> str:
    return str(getattr(thing, "__qualname__", None) or repr(thing)[:80])
