"""`python -m specnb` is the command `specnb`."""

import sys

from specnb.cli import main

sys.exit(main())
