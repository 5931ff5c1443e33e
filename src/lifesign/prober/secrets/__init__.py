"""Secrets of credentials: reading them, requesting tokens, and the headers that requests carry."""
