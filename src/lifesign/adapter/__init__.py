"""Runs a command as an agent under a task lease.

It uses the registry's API, as every agent does. The rules are in `domain/tasks`.
"""
