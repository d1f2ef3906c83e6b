"""The scenarios that come with mrclab, by name. This module imports little: a typo is found at once."""

from __future__ import annotations

from mrclab.topologies.shipped import Shipped

SCENARIOS = Shipped("scenario", "mrclab.experiments", "scenarios")
