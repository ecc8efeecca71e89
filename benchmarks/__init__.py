"""Benchmarks: this product beside what one would otherwise use, on one machine, in one run.

Law of this room: every comparator is started for real and measured in the same run, in turns of about two
seconds with rests between them. What is judged is the ratio of one round; absolute figures do not travel.
A ratio that spreads too wide is no result: it says so and is tried again, a bounded number of times. What
falls short is shown as falling short. Every server here is the same program with the same settings, reached
by a unix socket. Only processes started here are ended here. Nothing of the product imports this room.

    targets     what is promised: one line for each, with its target and its stretch     (pure)
    verdict     medians, spread, ratios, met or not                                       (pure)
    table       how that is printed                                                       (pure)
    machine     processes, ports, servers, what they cost
    load        the load generator, a process of its own
    webs        the receivers that are compared; queues: the workers that are compared
    bouts/      what is measured, one file for each kind
    plots, docs the same as pictures, and on the page docs/performance.md
    comparators/   the other side's programs, as their documentation would have one write them
"""
