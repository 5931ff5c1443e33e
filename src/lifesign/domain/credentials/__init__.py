"""Rules for the credentials of targets: which request carries which one, and what must never be shown."""
