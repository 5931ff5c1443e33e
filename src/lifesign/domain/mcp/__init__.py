"""Model Context Protocol: a prober's requests to a server, and the meaning of the answers."""
