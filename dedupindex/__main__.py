"""Run the ``dedupindex`` command, also by ``python -m dedupindex``."""

import signal
import sys

# While modules are imported Ctrl-C ends the process at once; Python would print a traceback.
raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if raises:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from dedupindex.cli import main  # noqa: E402

if raises:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if __name__ == "__main__":
    sys.exit(main())
