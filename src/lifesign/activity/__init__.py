"""Passive heartbeats: sends heartbeats for an agent while its sessions elsewhere show progress.

The rules are in `domain/lifecycle` (`opencode_event`, `passive_heartbeat`). Needs the extra `client`.
"""
