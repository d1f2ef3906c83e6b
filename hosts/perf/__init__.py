"""The measurements of ``mrclab perf``: a process on each of two hosts, and their client."""
