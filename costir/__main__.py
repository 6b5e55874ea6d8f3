"""`python -m costir`, which is how torchrun starts it."""

import sys

from costir.cli import main

sys.exit(main())
