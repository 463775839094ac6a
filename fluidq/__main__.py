"""`python -m fluidq` is the `fluidq` command."""

import sys

from fluidq.cli import main

sys.exit(main())
