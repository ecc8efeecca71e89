"""Benchmarks: storehooks and its alternatives, measured on one machine in one run.

Law of this room: every peer is started for real and measured in the same run, in turns of about two seconds with rests
between them. Only the ratio of one round is evaluated, because absolute figures depend on the machine. If the ratios
spread too widely, there is no result: the output says so, and the comparison is repeated a limited number of times.
Missed targets are shown as missed. Every Redis server here is the same program with the same settings, on a unix
socket. Only processes started here are stopped here. The product does not import this room.

    targets            the targets: one line for each, with its goal and its stretch goal     (pure)
    evaluation         medians, spread, ratios, whether a target is met                       (pure)
    tables             the results as text and Markdown                                       (pure)
    comparison         runs the rounds of a comparison
    comparisons/       what is measured, one file for each kind
    processes          processes, ports, Redis servers, CPU time
    load               the load generator, run as its own process
    fill_inbox         fills an inbox with events
    receivers          the receivers that are compared
    queue_workers      the workers that are compared
    scaling            what one event costs, for docs/scaling.md: `python -m benchmarks.scaling`
    plots, performance_page   the results as plots and in docs/performance.md
    peers/             the alternatives, written as their documentation recommends
"""
