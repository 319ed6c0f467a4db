"""`python -m suture` is `suture`."""

import sys

from suture.cli import main

sys.exit(main())
