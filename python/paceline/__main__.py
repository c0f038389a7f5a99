"""The command ``paceline``, as ``python -m paceline``."""

import sys

from paceline._paceline import main

sys.exit(main())
