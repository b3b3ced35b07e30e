"""``wisp-runtime`` with a given persistent kernel of weights in block FP8.

python served.py CUBIN bench decode …
"""

import sys
from pathlib import Path

from wisp_runtime.cli.main import main
from wisp_runtime.ops.cuda.device.kernels import KernelSet
from wisp_runtime.ops.cuda.device.manifest import Source

path_of, cubin = KernelSet._path, Path(sys.argv.pop(1))


def path(self: KernelSet, source: Source) -> Path:
    """Return the file of a kernel."""
    is_ours = source.op == "persistent_decode" and "-DWISP_WEIGHT_FORMAT=fp8_block" in source.defines
    return cubin if is_ours else path_of(self, source)


KernelSet._path = path
main()
