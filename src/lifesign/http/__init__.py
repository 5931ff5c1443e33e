"""The HTTP client of the client, the prober, the registry and the MCP tools: bounded and guarded.

    address_guard.py        which URLs and addresses may be contacted (SSRF guard)
    byte_counter.py         the bound on what an answer sends besides its body
    counted_sessions.py     aiohttp sessions whose connections count every received byte
    guarded_sessions.py     the same for hosts that strangers chose: each address is vetted
    bounded_get.py          one GET with its redirects, bounded in bytes and time
    bounded_body.py         reading a body up to a limit
    answer.py               what an answer's status and header say
    failures.py             what can go wrong, and the result class of each failure
    headers.py              header fields that a consumer of health documents must know
    redirects.py            where a redirect leads, and whether it is followed

The prober sends its requests over connections of its own (`prober/line.py`), with the same guard and the
same counter. Needs the extra `client` (aiohttp).
"""
