"""The paper's claims, each judged from a result: ``figNN.py`` for ``figure: figNN`` in a scenario.

A module has ``PAPER``, what was published, in a line, and ``judge(result) -> Verdict``, which looks at
nothing but the contents of result.json. ``mrclab.experiments.judging`` has what judges share, docs/figures.md
each criterion and where it comes from.

More than 16 modules: one for each figure.
"""
