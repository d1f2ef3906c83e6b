"""The first Python code that runs in the browser. It imports `Page` from core.zip and creates a page."""

import gc
import json
import os
import sys

os.environ["MRCLAB_PURE"] = "1"
sys.path.insert(0, "/core.zip")
from mrclab.play.page import Page

with open("/fabrics.json", encoding="utf-8") as known:
    page = Page(**json.load(known))
gc.collect()
gc.freeze()
