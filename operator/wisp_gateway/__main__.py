"""``python -m wisp_gateway``: the same as the console script."""

from wisp_gateway.main import main

main()
