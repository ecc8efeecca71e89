"""The drill: a whole installation under load, and one fault after another. `make drill` runs it and prints a table.

Two hosts with their own `data_dir` and ports, two receivers, three worker processes, nginx in front, and a client that
sends 150 deliveries a second and notes every answer. After each fault it counts: what was answered 2xx must have been
handled by every handler, and `doctor` must find nothing, without a restart by a person.

    client      sends deliveries at a fixed rate; its own process
    front       the proxy in front of the receivers: nginx, or a stand-in where it is missing
    fleet       the hosts and their processes
    counting    what became of the deliveries of one row                    (pure)
    installations   what rows run on: one server, a proxy that fails, release 0.1, Sentinel
    faults      the faults, one function for each kind of row
    rows        all rows in their order
    table       the rows as text                                            (pure)
"""
