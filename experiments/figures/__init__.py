"""The judges of the paper's figures and of the other shipped claims, by theme.

A judge computes a verdict from a result: ``judge_<figure>``; ``PAPER_<FIGURE>`` has what the paper published.
`mrclab.experiments.spec.claim` lists the figures, and docs/figures.md has each criterion and its source.
"""
