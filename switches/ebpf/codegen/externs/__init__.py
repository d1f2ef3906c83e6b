"""Write the code of v1model's externs, such as meters, registers, hashes and digests."""
