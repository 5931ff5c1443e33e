"""The marker on this host that names its database, so that a replaced one is refused."""
