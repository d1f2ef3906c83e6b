"""The classroom: labs that students do step by step, and the code that hands out, checks and packs them.

A lab is a folder ``NN-name``. It has ``lab.yaml`` (`mrclab.labs.catalogue`), ``README.md``, ``start/`` (the
student's skeleton), ``check.py`` (`mrclab.labs.checks`), ``solution/``, ``mistakes.yaml`` and
``instructor.md``.
"""
