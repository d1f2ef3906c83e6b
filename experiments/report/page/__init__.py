"""The page of a result: one HTML file that needs no network.

``content`` chooses the contents of the page, ``fabric_svg`` draws the fabric and its faults, ``render`` makes
the HTML, and ``shared`` has the parts that other pages have, too.
"""
