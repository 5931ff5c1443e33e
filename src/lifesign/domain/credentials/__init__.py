"""Rules for credentials of targets: the requests that carry them, and the removal of secrets from texts."""
