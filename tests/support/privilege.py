"""Run a command as an ordinary user with the right to read every file."""

# The user nobody, with one privilege: to read every file. So the checkout may be below /root.
AS_NOBODY = (
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    *(f"--{which}=-all,+dac_read_search" for which in ("inh-caps", "ambient-caps", "bounding-set")),
)
