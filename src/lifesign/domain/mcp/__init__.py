"""Model Context Protocol: requests of a prober to a server, and the meaning and outcome of answers."""
