"""``mrclab scale``: the question from the command line, the answer as tables, pictures and a page."""
