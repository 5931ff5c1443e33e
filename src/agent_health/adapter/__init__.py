"""Runs an agent's process under a task's lease.

    held_work.py       what does the tool proxy know of the run that it speaks for?
    tool_proxy.py      where does an agent under a lease get its tools, and who else may ask there?
    proxy_server.py    how is the tool proxy served, once an agent has connected?
    proxied_calls.py   which tools does the agent see, and what becomes of each call?
    metered_call.py    how is a call paid for?
    upstream_server.py  how is one upstream MCP server kept alive, and asked?
    upstreams.py       what may a tools file say?
    upstreams_file.py  how is it read, and what is wrong with it, on which line?

Asks the registry from outside, as every agent does. What is decided stands in `agent_health.task` and
`agent_health.lease_rhythm`.
"""
