"""The page of a training that runs: ``mrclab live --run DIR``."""
