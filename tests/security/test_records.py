"""A record may come from anywhere: whatever is in it, readers answer, other runs are not harmed, and it can be removed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
SEED, NUMBER = int(os.environ.get("ASSAY_ATTACK_SEED", 0)), int(os.environ.get("ASSAY_ATTACKS", 60))
