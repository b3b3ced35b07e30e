"""A real S3 server on the loopback: versitygw, built once from its Go module and kept in the cache."""

import datetime
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

VERSION = "1.8.0"
MODULE = "github.com/versity/versitygw/cmd/versitygw"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wisp"
ACCESS_KEY, SECRET_KEY = "wisp-test", "wisp-test-secret"


def versitygw() -> Path:
    """Return the server's binary; the first time it is built, which takes about two minutes."""
    binary = CACHE / f"tools-versitygw-{VERSION}" / "versitygw"
    if binary.exists():
        return binary
    if shutil.which("go") is None:
        pytest.skip("Go is not installed; s3:// is tested against versitygw, built from its Go module")
    scratch = binary.parent.with_name(f"{binary.parent.name}.{os.getpid()}")
    environment = os.environ | {"GOBIN": str(scratch), "CGO_ENABLED": "0", "GOFLAGS": "-trimpath"}
    command = ["go", "install", "-ldflags", "-s -w", f"{MODULE}@v{VERSION}"]
    built = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        pytest.skip(f"versitygw {VERSION} could not be built: {built.stderr.strip().splitlines()[-1]}")
    binary.parent.mkdir(parents=True, exist_ok=True)
    (scratch / "versitygw").rename(binary)
    scratch.rmdir()
    return binary


class Buckets:
    """A running server.

    Attributes:
        settings: ``AWS_*`` variables with which it lets one in.
    """

    def __init__(self, endpoint):
        self.endpoint = endpoint
        self.settings = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": endpoint,
        }

    def put(self, bucket, prefix, files, *, part_bytes=None):
        """Store files below a prefix; in parts, as large objects are, if ``part_bytes`` is given."""
        import obstore

        for name, data in files.items():
            parts = {"use_multipart": part_bytes is not None, "chunk_size": part_bytes or 5 << 20}
            obstore.put(self._store(bucket), f"{prefix}/{name}", data, **parts)

    def _store(self, bucket):
        from obstore.store import S3Store

        config = {key.lower(): value for key, value in self.settings.items()}
        wait = datetime.timedelta(seconds=5)
        return S3Store(
            bucket,
            config=config,
            client_options={"allow_http": True},
            retry_config={"max_retries": 1, "retry_timeout": wait},
        )


@contextmanager
def running_buckets(folder, *names):
    """Run the server with ``names`` as its buckets, on a port of the system's choice."""
    for name in names:
        (folder / "data" / name).mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [versitygw(), "--port", f"127.0.0.1:{port}", "--health", "/health", "posix", folder / "data"]
    environment = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY, "HOME": str(folder)}
    with (folder / "versitygw.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        _wait(f"http://127.0.0.1:{port}/health", process)
        yield Buckets(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(10)


def _wait(url, process):
    until = time.monotonic() + 20
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    pytest.fail("versitygw did not come up")
