"""`python -m storehooks`, and the script `storehooks`: the command line."""

import storehooks.own_packages  # noqa: F401  before anything of ours is imported
from workers.cli import main

if __name__ == "__main__":
    main()
