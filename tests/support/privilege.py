"""Running a command as a person who is not root would, wherever the files lie."""

# Nobody, with no privilege but to read: a checkout below /root stays readable.
AS_NOBODY = (
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    *(f"--{which}=-all,+dac_read_search" for which in ("inh-caps", "ambient-caps", "bounding-set")),
)
