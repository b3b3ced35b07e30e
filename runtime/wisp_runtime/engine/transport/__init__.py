"""Messages between server and engine process, and the pipe that carries them."""
