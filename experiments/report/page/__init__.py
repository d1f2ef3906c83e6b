"""The page of a result: one HTML file that needs no network, prints, and explains itself.

``fabric_svg`` draws the fabric with the faults marked, ``inline`` puts pictures into the page, ``content``
says what a page holds, ``index`` lists many runs.
"""
