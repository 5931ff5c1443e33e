"""Passive heartbeats: what an agent's sessions do elsewhere is told to the registry, in the agent's name.

    opencode.py   what does an opencode server say, and what does it answer about its sessions?
    beating.py    how does a heartbeat reach the registry, and how does it end if not?
    telling.py    what is told of what was seen and decided?
    watcher.py    who follows the server, sends what is due, and comes back when either is away?

What follows from what is decided in `lifesign.domain.lifecycle.activity_event` and `lifesign.domain.lifecycle.passive_heartbeat`.
Needs the extra `client` (aiohttp).
"""
