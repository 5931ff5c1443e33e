"""Tools for models, over MCP: what an agent says of itself and its task, what a consumer asks about others.

    tools.py              which tools are there, and which of them are offered here?
    tool.py               what is a tool, what does it get, and what does it answer?
    heartbeat.py          the tool of an agent that says that it is alive
    check_agent.py        the tool of whoever is about to call an agent
    find_agents.py        the tool of whoever looks for one
    in_run.py             in whose name does a tool write to a task, and how is a retry known?
    report_progress.py    the tool of a task's holder that has something to say
    mark_complete.py      the tool of one that has a result
    request_human_help.py  the tool of one that needs people
    delegate_subtask.py   the tool of one that gives a part away
    task_tools.py         which tools has whoever holds a task?
    refusal_code.py       by which codes does a tool refuse?
    vetted_get.py         GET requests for models, to public and allowed addresses only
    answer.py             how does a call become an answer, whatever goes wrong?
    server.py             the SDK's server, and the tools that it offers; the tool proxy uses it, too
    http_app.py           the ASGI app of that server over streamable HTTP
    over_stdio.py         how is it served to the program that started it?
    over_http.py          how is it served on a socket?
    place.py              where is it served, and under which names may it be asked?
    http_server.py        how does uvicorn serve it: bounded in connections, heads and time, and silent?
    guard.py              who may speak to that socket, how much, and for how long?

A further tool is a file of its own and one line in tools.py. Needs the extra `mcp`: the official SDK, which
is `mcp` without a package before it.
"""
