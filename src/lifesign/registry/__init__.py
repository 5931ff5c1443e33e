"""Registry server (RFC-0016). Each operation is a function that runs in one transaction.

`app.py` wires everything into one ASGI app; `status_changes` is the layer below agents, leases and tasks.
"""
