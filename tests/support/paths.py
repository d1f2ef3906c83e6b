"""Where the checkout and the test data lie."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SWITCH_DATA = ROOT / "tests" / "switches" / "data"
