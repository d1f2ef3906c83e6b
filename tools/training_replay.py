"""Record a replay of a training job for the documentation.

mrclab run tools/training_replay.yaml --out RUN
python tools/training_replay.py RUN
"""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path

from mrclab.live.training import Follower
from mrclab.play.replays import TRAINING

TITLE = "A training under faults: MRC, RoCEv2, and a control without faults"

if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    frame = Follower(Path(sys.argv[1])).frame()
    frame["about"] |= {"directory": "", "title": TITLE}
    text = json.dumps(frame, separators=(",", ":")) + "\n"
    Path(str(files("mrclab.play") / TRAINING)).write_text(text, encoding="utf-8")
