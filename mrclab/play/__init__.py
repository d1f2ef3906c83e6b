"""The live page's frames from the simulator: pure Python, so it also runs in a browser.

Nothing here imports NumPy or pydantic. `mrclab live --target sim` serves these frames, and the page of
`make site` computes them in the browser itself.
"""
