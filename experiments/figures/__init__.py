"""The paper's claims, each judged from a result: ``figNN.py`` for ``figure: figNN`` in a scenario.

A module has ``PAPER``, the published finding in a line, and ``judge(result) -> Verdict``, which reads nothing
but the contents of result.json. ``mrclab.experiments.judging`` has the judges' common parts, docs/figures.md
each criterion and its source.

More than 16 modules: one for each figure.
"""
