"""`python -m pi_mcp.cli`: the same as `pi-mcp`."""

import sys

from pi_mcp.cli import main

sys.exit(main())
