"""The scenarios that come with mrclab. This module imports little, so a wrong name is reported fast."""

from __future__ import annotations

from mrclab.topologies.shipped import Shipped

SCENARIOS = Shipped("scenario", "mrclab.experiments", "scenarios")
