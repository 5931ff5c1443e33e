"""Leases, tasks, budgets and the end of runs."""
