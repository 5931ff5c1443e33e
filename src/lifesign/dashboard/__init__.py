"""What people see of a registry in a browser: pages made on the server, one small script, no build step.

    dashboard.py         wires the pages together; what `create_app` takes as a face
    desk.py              how a request becomes a page, or a deed of the API
    visitors.py          who is looking, and whether a form is ours
    log_in.py            how somebody logs in and out
    return_path.py       where who has logged in goes on
    notices.py           to which page a form leads back, and how it is told once what was done
    refusals.py          in which words people are refused
    pages.py             how a page looks as a response; templates/ holds them
    assets.py            how style, script and pictures are served; static/ holds them
    words.py             in which words pages tell what the registry knows
    fleet_facts.py       what is counted of the whole fleet, and how old the counts may be
    event_lines.py       what an event says to people, in one line
    live_feed.py         how a thousand open pages see what happens
    overview.py          the fleet at a glance
    agents_table.py      the table of agents
    maintenances.py      who is in maintenance, until when, by whom and why
    pool_maintenance.py  what may be done about a whole pool
    agent_page.py        one agent, and what may be done about it
    history.py           what an agent was over the last day, as it is drawn
    plots.py             what an agent said, and how it answered, over a day and a month, as it is drawn
    scales.py            how high a value stands in a plot
    events_page.py       what has happened
    task_pages.py        tasks, the queue that waits for people, and one task
    target_pages.py      what the prober knows of names
    census_page.py       what share of all targets is alive
    census_facts.py      from which counts a census is taken
    public_status.py     how an agent shows its health to everybody

Nothing is imported here: a command that takes a census loads no pages.
A page asks the registry as a program does, by the same operations (`desk.Look.ask`); what the API does not
tell it reads from `storage`. Nothing here decides anything.
"""
