"""`python -P -m storehooks.run_module MODULE`: runs a module of ours as `python -m MODULE` would.

Beside a folder called `receiver` or `workers`, it runs ours.
"""

import runpy
import sys

import storehooks.own_packages  # noqa: F401  before the module is found

if __name__ == "__main__":
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
