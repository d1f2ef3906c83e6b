"""``mrclab scale``: read the input of a scale study, and show its results as tables and a page."""
