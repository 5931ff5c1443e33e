"""Credentials of targets: reading their secrets, and the headers that requests carry."""
