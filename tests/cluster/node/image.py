"""Make a one-layer container image from files, without a container engine.

``image.py OUT.tar NAME ENTRYPOINT FILE=DEST…`` writes a docker-archive that ``ctr images import`` takes.
"""

import hashlib
import io
import json
import sys
import tarfile


def layer_of(files: list[str]) -> bytes:
    """Tar ``FILE=DEST`` pairs, owned by root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for pair in files:
            source, destination = pair.split("=")
            layer.add(source, destination.lstrip("/"))
    return buffer.getvalue()


def write_image(path: str, name: str, entrypoint: str, layer: bytes) -> None:
    """Write the archive: one layer, one configuration, one manifest."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": entrypoint.split(), "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    members = {"config.json": json.dumps(config), "layer.tar": layer, "manifest.json": json.dumps(manifest)}
    with tarfile.open(path, "w") as archive:
        for member, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(member)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


if __name__ == "__main__":
    write_image(*sys.argv[1:4], layer_of(sys.argv[4:]))
