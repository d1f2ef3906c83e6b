"""``mrclab sweep``: compute a grid of parameters and seeds, point by point, on one machine or many."""
