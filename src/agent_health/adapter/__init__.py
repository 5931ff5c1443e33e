"""Runs an agent's process under a task's lease.

    held_work.py       what does the tool proxy know of the run that it speaks for?

Asks the registry from outside, as every agent does. What is decided stands in `agent_health.task` and
`agent_health.lease_rhythm`.
"""
