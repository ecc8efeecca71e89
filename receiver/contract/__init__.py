"""What a store and we have agreed on: schemes, events, topics, settings.

Law of this room: pure. Bytes and values in, values out; no socket, no file, no clock, nothing from
other rooms. Importing it is light, because integrators import `Event` from here.
"""
