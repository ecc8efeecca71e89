"""`python -m workers.runtime.worker`: one worker process with its child processes."""

from __future__ import annotations

import argparse
import sys

from workers.runtime.worker.worker import run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m workers.runtime.worker", description="One worker with its child processes."
    )
    parser.add_argument("--config", help="the TOML file; else $STOREHOOKS_CONFIG or ./config.toml")
    return run(parser.parse_args().config)


if __name__ == "__main__":
    sys.exit(main())
