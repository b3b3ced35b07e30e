"""Path of the operator's tests to what they share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # hollow_checkpoint
