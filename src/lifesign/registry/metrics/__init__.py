"""Prometheus metrics of the registry."""
