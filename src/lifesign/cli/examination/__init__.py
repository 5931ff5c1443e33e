"""What can be wrong with a set-up, how is that found out, and what is there to do about it?

    machine.py      what is installed here, and which ways lead out?
    database.py     can the database be reached, is it of this version, and does somebody sweep there?
    marker.py        is it the database that this host knows?
    server.py       could a server listen here: on this port, with this certificate, behind these proxies?
    registry.py     does a registry answer, has it the time, does it know the key, and believe silence?
    definition.py   can a probe definition be read, with its lists, and are its canaries known?
    asking.py       what does a server answer, and how long is it waited for?
    finding.py      what came of a question, and what is answered to one that is asked of several things?

Every question has its own time, and an answer whatever happens: this is for set-ups that are out of order.
"""
