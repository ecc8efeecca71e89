"""Certification: tests a plugin against duplicates, reordering, delays and crashes.

The plugin handles one sequence of events in the real pipeline, first without faults and then once for each scenario:
duplicated, reordered, late, with killed processes, lost answers, unknown or missing fields. The end state must be the
same each time: the sandbox store's records, the files in the working directory, and `ctx.state`.

    scenarios       pure: the events and the faults, all determined by one seed
    wrapped_plugin  the plugin as the workers load it: measured, and killed where the scenario says so
    end_state       the state after a scenario, and the differences between two states
    runner          runs the scenarios on a local system
    report          the results as text and JSON

Law of this room: the same seed gives the same events and the same faults. Nothing leaves the local system except what
the plugin itself sends elsewhere: certify with settings for testing.
"""
