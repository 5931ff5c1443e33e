"""Names that resolve to addresses that a test sets, in place of the system's resolver."""

import socket
from collections.abc import Callable, Mapping, Sequence

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from lifesign.http_client import guarded_sessions

Lookups = Mapping[str, Sequence[Sequence[str]]]
"""For each name: the addresses of its first lookup, its second, and so on; the last one repeats."""
Named = Callable[[Lookups], list[str]]


class Names(AbstractResolver):
    """Foreign name servers with any answers."""

    def __init__(self, lookups: Lookups, asked: list[str]) -> None:
        self.lookups = lookups
        self.asked = asked

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        answers = self.lookups[host]
        found = answers[min(self.asked.count(host), len(answers) - 1)]
        self.asked.append(host)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in found
        ]

    async def close(self) -> None:
        """Do nothing: nothing has to be released."""


def named_hosts(monkeypatch: pytest.MonkeyPatch) -> Named:
    """Return a function that sets the names; it returns the list of names that are looked up from then on."""

    def answer_lookups(lookups: Lookups) -> list[str]:
        asked: list[str] = []
        monkeypatch.setattr(guarded_sessions, "SystemResolver", lambda: Names(lookups, asked))
        return asked

    return answer_lookups
