"""An MCP server with one tool, on standard input and output."""

from mcp.server import MCPServer

server = MCPServer("weather")


@server.tool()
def get_weather(city: str) -> str:
    """Return the weather of a city."""
    return f"12 degrees in {city}"


if __name__ == "__main__":
    server.run()
