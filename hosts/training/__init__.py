"""Data-parallel training of a small transformer: the model, the accelerator of each rank, and the job."""
