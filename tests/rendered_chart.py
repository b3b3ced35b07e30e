"""The rendered chart: its objects by kind and name."""

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts/wisp"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "wisp"
HELM = shutil.which("helm") or next(map(str, sorted(CACHE.glob("node-*/helm"), reverse=True)), None)

needs_helm = pytest.mark.skipif(HELM is None, reason="needs helm: tests/cluster/node/build.sh makes one")


def helm(command, *arguments, check=True):
    """Run helm with a Kubernetes that the chart wants; its output, or with check=False its whole result."""
    kube = [] if command == "package" else ["--kube-version", "1.34"]
    done = subprocess.run([str(HELM), command, *arguments, *kube], text=True, capture_output=True, timeout=60)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout if check else done


@functools.cache
def rendered(*settings, release="wisp"):
    """The chart's objects by ``Kind/name``, in namespace wisp-system."""
    flags = [flag for setting in settings for flag in ("--set-json", setting)]
    text = helm("template", release, str(CHART), "--namespace", "wisp-system", *flags)
    documents = [document for document in yaml.safe_load_all(text) if document]
    found = {f"{document['kind']}/{document['metadata']['name']}": document for document in documents}
    assert len(found) == len(documents), "two objects of one kind and name"
    return found
