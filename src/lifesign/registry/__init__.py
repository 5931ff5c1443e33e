"""The server of RFC-0016. An operation is a plain function that runs in one transaction.

`app.py` wires everything into one ASGI app; `status_changes` is the layer below agents, leases and tasks.
"""
