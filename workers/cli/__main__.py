"""`python -m workers.cli`: the command line, as the script `storehooks`."""

from workers.cli import main

main()
