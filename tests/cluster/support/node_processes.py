"""Processes of the test node, those of containers and its own components: killed, stopped, kept away."""

import os
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

from kube import NODE_RUN

RESTART = Path(__file__).parents[1] / "node/restart.sh"
ENGINE = "wisp_runtime.engine.process"


def of_container(pod):
    """Process id of the first process of a pod's container."""
    container = pod["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
    command = ["ctr", "-a", str(NODE_RUN / "containerd.sock"), "-n", "k8s.io", "tasks", "ls"]
    lines = subprocess.run(command, check=True, text=True, capture_output=True, timeout=30).stdout
    return next(int(line.split()[1]) for line in lines.splitlines() if line.startswith(container))


def below(pid):
    """The process and its descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:  # it has ended
            continue
        parents[int(stat.parent.name)] = int(text.rpartition(")")[2].split()[1])
    found = [pid]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def engine_of(pod):
    """Process id of the engine in a model's pod."""
    for process in below(of_container(pod)):
        if ENGINE in Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode():
            return process
    raise AssertionError(f"no engine in {pod['metadata']['name']}")


def of_component(name):
    """Process id of a component of the node: apiserver, controllers, kubelet, …"""
    return int((NODE_RUN / f"{name}.pid").read_text())


@contextmanager
def stopped(*processes):
    """Stop processes (SIGSTOP) for the time of the block."""
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            if Path(f"/proc/{process}").exists():
                os.kill(process, signal.SIGCONT)


@contextmanager
def away(component, seconds):
    """Kill a component of the node, and start it again ``seconds`` later; the block runs meanwhile."""
    restart = subprocess.Popen([str(RESTART), component, str(seconds)], stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        yield
    finally:
        assert restart.wait(seconds + 60) == 0
