"""Every error that agent-health raises on purpose."""

from collections.abc import Sequence

from agent_health.finding import Finding


class AgentHealthError(Exception):
    """Root of the errors that agent-health raises on purpose."""


class InvalidSetting(AgentHealthError, ValueError):
    """A setting that the caller gave is wrong; `name` is the setting, `expected` what it takes."""

    def __init__(self, name: str, given: object, expected: str) -> None:
        super().__init__(f"{name}: expected {expected}; got {given!r}")
        self.name = name
        self.given = given
        self.expected = expected


class InvalidDocument(AgentHealthError, ValueError):
    """A peer's health document breaks the rules; `faults` says where and why, never empty."""

    def __init__(self, faults: Sequence[Finding]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        self.faults = tuple(faults)
