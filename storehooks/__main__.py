"""`python -m storehooks`, and the script `storehooks`: the command line."""

import signal

# While it imports, Ctrl-C ends it as it ends any program, without a traceback. Where it is ignored, it stays so.
_INTERRUPTED = signal.getsignal(signal.SIGINT)
if _INTERRUPTED is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import storehooks.own_packages  # noqa: E402, F401  before anything of ours is imported
from workers.cli import main  # noqa: E402

signal.signal(signal.SIGINT, _INTERRUPTED)

if __name__ == "__main__":
    main()
