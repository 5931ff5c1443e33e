"""The server of RFC-0016: a deed is a plain function, done whole or not at all in one transaction.

    app.py                  wires everything into one ASGI app
    run_server.py           starts it, as one process or several
    operations.py           says what an operation is; every deed's file lists its own
    call.py                 takes a request through the checks into a deed, and makes the response
    error_responses.py      which error gives which HTTP status
    refuse_request.py       what is answered where nothing is, to programs and to people
    heartbeat_endpoint.py   reads heartbeats, thousands per second
    receive_heartbeat.py    what happens when a heartbeat arrives
    register_agent.py       what happens when an agent registers
    drain_agent.py          how an agent leaves
    find_agents.py          which agents are there
    hold_lease.py           who gets a lease, and keeps it
    judge_agents.py         asks for the verdict
    change_status.py        carries it out: record, leases, events
    sweep.py                notices silence
    reap_leases.py          ends what is over, whether anybody sweeps or not
    run_task.py             what the holder of a task may write; move_task.py carries out what follows
    accept_observations.py  takes what probers saw
    read_events.py          reads the log; stream_events.py follows it, deliver_webhooks.py sends it

The other files are one deed each, named for it. The way down from a heartbeat: receive_heartbeat,
judge_agents (asks `verdict`), change_status, then `storage`.
"""
