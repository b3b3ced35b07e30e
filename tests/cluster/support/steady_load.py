"""The load of ``pods/load.py`` as a process of this machine, and what its report must hold.

A process and not a pod: it goes on while pods are evicted, and while kubelet or containerd are away.
It must reach the gateway's Service, so it runs where the tests do, in the node's network namespace.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 170  # a little more than the gateway holds a request
SCRIPT = Path(__file__).parents[1] / "pods/load.py"


class SteadyLoad:
    """Requests at a rate that can be changed, until :meth:`report`."""

    def __init__(self, folder, url, models, rate, tokens=8):
        self.rate_file = folder / f"rate-{time.time_ns()}"
        command = [sys.executable, str(SCRIPT), url, models, str(rate), str(tokens), "new"]
        environment = {**os.environ, "RATE_FILE": str(self.rate_file), "PATIENCE_S": str(PATIENCE_S)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    def rate(self, rate):
        """Go on at another rate."""
        partial = self.rate_file.with_suffix(".partial")
        partial.write_text(str(rate))
        partial.rename(self.rate_file)

    def report(self):
        """Stop, wait for the answers that are still due, and give the counts."""
        self.rate("stop")
        return json.loads(self.process.communicate(timeout=2 * PATIENCE_S)[0].splitlines()[-1])

    def kill(self):
        """End it without a report."""
        self.process.kill()
        self.process.wait()
