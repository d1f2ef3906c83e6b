"""The page of a run: one HTML file that needs no network, prints, and explains itself.

``fabric_svg`` draws the fabric with the fault marked, ``inline`` puts pictures into the page, ``link_kill``
says what the page of that experiment holds, ``index`` lists many runs, ``write`` puts files on the disk.
"""
