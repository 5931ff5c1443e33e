"""Probes agents from outside, safely and politely.

It knows no database: any object with `claim` and `report` (`results/ledger.py`) gives it work.
"""
