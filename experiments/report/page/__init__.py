"""The page of a result: one HTML file that needs no network, prints, and explains itself.

``fabric_svg`` draws the fabric with the faults marked, ``inline`` puts pictures into the page, ``content``
chooses the contents of a page, ``index`` lists many runs.
"""
