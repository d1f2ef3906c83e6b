"""The judges of the paper's figures and of the other claims that come with mrclab: one module for each theme.

The judge ``judge_<figure>`` computes a verdict from a result. ``PAPER_<FIGURE>`` quotes the paper's values.
`mrclab.experiments.spec.claim` lists the figures, and docs/figures.md has each criterion and its source.
"""
