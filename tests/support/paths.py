"""The folders of the checkout and of the test data."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SWITCH_DATA = ROOT / "tests" / "switches" / "data"
