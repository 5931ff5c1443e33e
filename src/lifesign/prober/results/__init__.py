"""Ledgers and files that take observations, and the evidence behind them."""
