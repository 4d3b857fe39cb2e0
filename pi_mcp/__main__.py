"""`python -m pi_mcp`: the same as `pi-mcp`."""

import sys

from pi_mcp.cli import main

sys.exit(main())
