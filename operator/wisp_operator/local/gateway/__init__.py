"""The gateway of `wisp up`: its process, its directory, its reports of demand."""
