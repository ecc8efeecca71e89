"""What an integrator's code meets: router, context, effects, conditions, settings; loading and validating plugins.

Law of this room: it imports `receiver.contract`, `.config`, `.inbox` and `workers.storeapi`, and no other room of
`workers`. Importing the names an integrator uses stays light.
"""
