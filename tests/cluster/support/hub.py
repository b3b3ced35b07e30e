"""A hub whose repositories have headers but no weights, enough to ask for a fit; on loopback, or in a pod.

In a pod, `python3 hub.py` serves acme/large and acme/small on port 8000.
"""

import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from wisp_plan.families.config import parse_config
from wisp_plan.weights.tensors import expected_tensors

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-5,
}
TINY = LLAMA_8B | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 512}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2}


def header_and_length(config):
    """The beginning of a safetensors file for ``config``, and the length of the complete file."""
    entries, position = {}, 0
    for tensor in expected_tensors(parse_config(config)):
        size = 2
        for length in tensor.shape:
            size *= length
        offsets = [position, position + size]
        entries[tensor.name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": offsets}
        position += size
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text, 8 + len(text) + position


def server(address, repositories):
    """A server of repositories ``acme/NAME``, given by their configs."""
    files = {}
    for name, config in repositories.items():
        text = json.dumps(config).encode()
        files[f"/acme/{name}/resolve/main/config.json"] = (text, len(text))
        files[f"/acme/{name}/resolve/main/model.safetensors"] = header_and_length(config)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path not in files:
                self.send_error(404)
                return
            body, length = files[self.path]
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"])
            first, last = int(asked[1]), min(int(asked[2]), length - 1)
            part = body[first : last + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{length}")
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part)

        def log_message(self, *_):
            pass

    return ThreadingHTTPServer(address, Handler)


@contextmanager
def hub(**repositories):
    """Serve repositories ``acme/NAME`` on the loopback; gives the endpoint."""
    serving = server(("127.0.0.1", 0), repositories)
    threading.Thread(target=serving.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{serving.server_port}"
    finally:
        serving.shutdown()
        serving.server_close()


if __name__ == "__main__":
    server(("0.0.0.0", 8000), {"large": LLAMA_8B, "small": TINY}).serve_forever()
