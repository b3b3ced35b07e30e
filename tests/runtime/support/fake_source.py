"""A source of weights in memory, which counts, waits and fails by script."""

import hashlib
import os

from wisp_runtime.errors import SourceUnreachable
from wisp_runtime.sources.listing import Listing, RemoteFile
from wisp_runtime.sources.manifest import MANIFEST_FILE

RANGE = 1000
WEIGHTS = os.urandom(10 * RANGE + 7)
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "empty.json": b""}


class Fake:
    """A source in memory. ``before_read`` is called with (name, start, stop) and may raise or wait."""

    uri, cache_key, wanted = "hf://org/name", "hf--org--name", "main"

    def __init__(self, files=None, revision="r1", pinned=None):
        self.files, self.revision, self.pinned = dict(files or FILES), revision, pinned
        self.digests = {
            name: f"sha256:{hashlib.sha256(data).hexdigest()}" for name, data in self.files.items()
        }
        self.before_read = lambda *_: None
        self.is_away, self.asked, self.read_ranges = False, 0, []

    def listing(self, _timeout_s):
        self.asked += 1
        if self.is_away:
            raise SourceUnreachable("nobody answers.")
        found = [RemoteFile(name, len(data), self.digests[name]) for name, data in self.files.items()]
        return Listing(self.revision, tuple(found))

    def read(self, file, start, stop):
        self.read_ranges.append((file.name, start, stop))
        self.before_read(file.name, start, stop)
        for at in range(start, stop, 300):
            yield self.files[file.name][at : min(stop, at + 300)]

    def fetched(self, name="model.safetensors"):
        return sum(stop - start for file, start, stop in self.read_ranges if file == name)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != MANIFEST_FILE}
