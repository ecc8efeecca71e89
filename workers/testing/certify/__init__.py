"""Certification: does a plugin bear what stores and machines do to it?

One sequence of events is given to the plugin in the real pipeline, cleanly; then again and again with something
wrong: doubled, out of order, late, with kills, with lost answers, with fields too many or too few. What must be
the same is what is left at the end: the sandbox store's records, the files in the working folder, and `ctx.state`.

    plan      pure: which events, and what goes wrong with them, all by one seed
    wrapped   the plugin as the workers load it: measured, and killed where the plan says so
    observe   what is left at the end, and how two ends differ
    trials    runs the plan on the rig
    report    what it found

Law of this room: the same seed gives the same events and the same mishaps. Nothing leaves the rig but what the
plugin itself sends elsewhere: certify with settings made for testing.
"""
