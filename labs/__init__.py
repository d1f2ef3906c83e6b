"""The classroom: labs that students do step by step, and what hands them out, checks them and packs them.

A lab is a folder ``NN-name``: ``lab.yaml`` (`mrclab.labs.model`), ``README.md``, ``start/`` (what the student
gets),
``check.py`` (`mrclab.labs.checks`), ``solution/``, ``mistakes/`` and ``instructor.md``.
"""
