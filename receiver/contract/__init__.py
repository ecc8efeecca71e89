"""The contract with the stores: verifies and reads a delivery, and defines events, topics, schemes and errors.

Law of this room: pure. Bytes and values in, values out; no socket, no file, no clock, nothing from
other rooms. Importing it is light, because integrators import `Event` from here.
"""
