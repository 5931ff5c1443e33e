"""Probes agents from outside, safely and politely.

It knows no database: anything with `claim` and `report` (`results/ledger.py`) gives it work.
"""
