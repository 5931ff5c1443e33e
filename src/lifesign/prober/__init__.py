"""The prober: looks at agents from outside, safely and politely, and says what it saw.

    definition, definition_file, definition_values
                    which targets, what is asked, how often, with which limits?     (probes/*.yml)
    directories/    which targets does a directory list?
    ledger, registry_ledger
                    where do targets come from, and where do results go?
    worker          claim shards, probe their targets when they are due, report
    claims, target_feed, shards
                    which shards are ours, and who lies in them?
    plans, due_times, pace, dispatch
                    whose turn is it, and who may start?
    intake          what counts of a result, what waits for a witness, what is remembered
    witnesses, waiting_failures, witness_requests
                    canaries and other targets that prove that a target could have been reached
    outbox, reporting, unmeasured
                    what is reported, when, and what if it cannot be?
    self_check, self_watch
                    slowness of the prober, which makes timeouts not measured
    jobs, progress, clock
                    what is done every so often beside all that, how far is it, what time is it?
    probe           card, interface, document of one target: one observation
    visit           how long, and how often, is one target asked within a probe?
    contact         network class and address of a target, and whether its host answered itself
    welcome, other_origins, opt_out, robots
                    who is left alone?
    discovery, transport, readiness, message
                    what do card, interface, health document and a message say?
    fetch           one bounded request to an address that was judged
    connector, line, open_lines
                    how is a connection made, used and kept?
    resolve, dns_channel
                    which addresses has a name, and whose fault is it if none is found?
    evidence, evidence_room
                    how are the bytes behind a finding kept, and how much room do they take?
    results_file    how do observations get into a file?
    census, census_form, census_group
                    what share of a directory is alive?
    census_tables, census_text, census_page, census_plots
                    how is that shown?

It knows no database: anything with `claim` and `report` gives it work.
"""
