"""What every server process needs: sockets, TLS, connection limits, proxies, worker supervision."""
