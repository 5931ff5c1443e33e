"""Common parts of server processes: sockets, TLS, connection limits, proxies, worker supervision."""
