"""Bodies in chunks of one byte: much work for a parser, few bytes for a limit (A4)."""

from attack import attack
from endless import TINY_CHUNKS, require_refusal
from wire import CHAT_PATH


@attack("A4")
def test_a_body_in_chunks_of_one_byte(gateway):
    head, chunk = TINY_CHUNKS
    start = f"POST {CHAT_PATH} HTTP/1.1\r\nhost: x\r\n".encode()
    require_refusal(gateway, start + head, chunk)
