"""Exchange with a registry: targets to probe come from it, and results go to it (ledgers)."""
