"""The plugin API (router, context, effects, conditions, settings), and finding and validating plugins.

Law of this room: it imports `receiver.contract`, `.config`, `.inbox`, `workers.storeapi` and `workers.processes`, and
no other room of `workers`. Importing the names an integrator uses stays light.
"""
