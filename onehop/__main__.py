"""The entry point of the `onehop` command, and `python -m onehop` where its script is not on the path.

It loads next to nothing, so that Ctrl-C is answered in one line from the first moment on.
"""

import signal
import sys

from onehop.base.interrupt import leave


def run() -> None:
    """Load the command line, and let it answer."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # and not ignored, as behind a shell's `&`
        signal.signal(signal.SIGINT, leave)
    from onehop.cli.main import main

    signal.signal(signal.SIGINT, before)
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
