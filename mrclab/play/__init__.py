"""The live page with the simulator, in pure Python, so that it also runs in a browser.

This package imports neither NumPy nor pydantic. `mrclab live --target sim` computes page updates on a server,
and the page of `make site` computes them in the browser.
"""
