"""Training of a small transformer, data-parallel: the model, the accelerator of each rank, and the job."""
