"""``python -m wisp_gateway``: the same as the console script."""

from .main import main

main()
