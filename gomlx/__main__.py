"""python -m gomlx: the command line."""
import sys

from gomlx.cli import main

sys.exit(main())
