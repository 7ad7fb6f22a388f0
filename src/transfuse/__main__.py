"""``python -m transfuse`` is the command line."""

from transfuse.cli import main

main()
