"""``python -m dedupindex``: the same as the ``dedupindex`` command."""

import sys

from dedupindex.cli import main

sys.exit(main())
