"""The externs of v1model as code: counters, meters, registers, hashes, digests and the like."""
