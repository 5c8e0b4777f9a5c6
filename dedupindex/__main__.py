"""Run the ``dedupindex`` command by ``python -m dedupindex``."""

import sys

from dedupindex.cli import main

sys.exit(main())
