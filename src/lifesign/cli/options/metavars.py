"""The words for values in `--help`: one word for each kind, the same in all commands."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

METAVARS: Final[Mapping[str, str]] = MappingProxyType({
    "AGENT_ID": "id of an agent",
    "CAPABILITY": "capability of an agent",
    "COMMAND": "program to run, with its arguments",
    "CONTACT": "address for the operators of probed agents, such as mailto:you@example.org",
    "COUNT": "whole number",
    "DIALECT": "dialect of an API",
    "DIRECTORY": "directory of the file system",
    "DOLLARS": "amount in US dollars, such as 1.50",
    "DURATION": "duration such as 30s, 5m, 1h or 2d; a plain number is seconds",
    "EVENT_TYPE": "type of an event, such as agent.lifecycle",
    "FACTOR": "factor, such as 2.5",
    "FILE": "path of a file",
    "HEALTH": "health of an agent",
    "HOST": "IP address or name of a host",
    "KEY_ID": "id of a key",
    "NAME": "name of an agent, a key or a list of agents",
    "NETWORK": "IP network such as 10.0.0.0/8",
    "NETWORK_CLASS": "network class: public_ipv4, public_ipv6 or a network",
    "NUMBER": "number, with or without a fraction",
    "POOL": "pool of agents, which the API calls role_id",
    "PORT": "TCP port",
    "RESULT": "result of a probe, such as timeout",
    "ROLE": "role of a key",
    "SEQUENCE": "sequence number of an event",
    "SESSION": "id of a session of an opencode server",
    "STATUS": "status of an agent or of a task",
    "TASK_ID": "id of a task",
    "TEXT": "any text",
    "TITLE": "title of a task",
    "URL": "URL of an agent, a registry, a server, a list or a database",
    "USER": "user of this machine",
    "drain": "subcommand for agents",
})  # fmt: skip
"""Meaning of each metavar. A short choice is written out instead: `heartbeat|probe`."""

_SEPARATORS = re.compile(r"\.\.\.|[\[\]|:=,]")
_LITERAL = re.compile(r"[a-z0-9-]+")


def unknown_words(metavar: str) -> list[str]:
    """Return the words of a placeholder, such as `AGENT_ID|URL`, that are not in METAVARS or fixed choices.

    `AGENT_ID|URL`, `URL...`, `[AGENT_ID]`, `HOST:PORT` and `NETWORK,...` are made of such words.
    """
    words = [word for word in _SEPARATORS.split(metavar) if word and word not in METAVARS]
    return [word for word in words if "|" not in metavar or _LITERAL.fullmatch(word) is None]
