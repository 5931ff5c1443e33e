"""Addresses and host names: which may be contacted, and which belong together."""
