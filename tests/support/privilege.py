"""Run a command as a user who is not root, wherever the files are."""

# The user nobody, whose only privilege is to read every file, even in a checkout below /root.
AS_NOBODY = (
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    *(f"--{which}=-all,+dac_read_search" for which in ("inh-caps", "ambient-caps", "bounding-set")),
)
