"""Probe definitions: targets, requests, intervals and limits (probes/*.yml)."""
