"""Runs an agent's process under a task's lease.

    adapter.py         how does it live: as which agent, with which task next, until when?
    task_run.py        how is one task worked at, from its grant to its end?
    agent_process.py   how is an agent's process started, and ended with all that it has started?
    warden.py          how does none of its processes outlive the run, whoever is killed?
    lease_timer.py     when must nothing of a run be left, whoever still lives to see to that?
    agent_user.py      as which user does an agent run, and what may that one reach?
    program.py         which file does a command start, and can whoever is to run it start that?
    left_behind.py     what goes on of a run whose adapter or watchers are gone, and how is it ended?
    lease_environment.py  what does the process learn of its lease?
    workspaces.py      where does a run work, and how long is that kept?
    own_keys.py        where are its own keys, and who lives as which agent here?
    output.py          where does the process's output go?
    progress_watch.py  progress of the process: output, and calls at the tool proxy
    telling.py         what is told of all this?

    held_work.py       what does the tool proxy know of the run that it speaks for?
    tool_proxy.py      where does an agent under a lease get its tools, and who else may ask there?
    proxy_server.py    how is the tool proxy served, once an agent has connected?
    proxy_app.py       the bound on the messages that are read at once, and the end of requests with the run
    proxied_calls.py   which tools does the agent see, and what becomes of each call?
    metered_call.py    how is a call paid for?
    call_failed.py     how has a call failed: was it carried out all the same?
    upstream_server.py  how is one upstream MCP server kept alive, and asked?
    server_pipes.py    how is a server spoken with over its pipes, whatever it writes?
    server_line.py     what does one line of a server say?
    server_body.py     how much is read of what a server at a URL answers?
    server_words.py    what becomes of what it writes beside its answers?
    upstreams.py       what may a tools file say?
    upstreams_file.py  how is it read, and what is wrong with it, on which line?

Asks the registry from outside, as every agent does. What is decided stands in `lifesign.domain.tasks.task_states`,
`lifesign.domain.tasks.run_end` and `lifesign.domain.tasks.lease_renewal`.
"""
