"""Targets of probes: their identity, links to agents, opt-outs, and the retirement of listed ones."""
