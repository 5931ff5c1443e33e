"""Runs a command as an agent under a task lease.

It asks the registry from outside, as every agent does. The rules are in `domain/tasks`.
"""
