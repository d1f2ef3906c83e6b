"""Start p4runtime-shell. The interpreter of a separate environment runs this file, without mrclab's packages.

Arguments: the switch's name, its device id, its address, and the election id of its primary controller.
"""

import contextlib
import io
import os
import sys

from p4runtime_sh import shell  # type: ignore[import-not-found]

BANNER = """\
p4runtime-shell on {switch} (device {device}, {address}). The fabric's controller stays primary; what is
written here goes to the switch under its election id. `tables` lists the tables, `table_entry["..."]` makes
an entry.
After a change, `mrclab status` shows how the switch differs from what the controller wants."""


def main() -> None:
    """Start the shell as a backup controller. The shell then writes with the primary's election id."""
    switch, device, address, primary = sys.argv[1:5]
    election = int(primary)
    backup = 1 + os.getpid() % max(1, min(election - 1, 1000))
    connect = shell.setup

    def setup(*args: object, **kwargs: object) -> None:
        with contextlib.redirect_stdout(io.StringIO()):  # hide the warning that a backup may not write
            connect(*args, **kwargs)
        shell.client.election_id = (election >> 64, election & (1 << 64) - 1)
        print(BANNER.format(switch=switch, device=device, address=address))

    shell.setup = setup
    # The value of --election-id has the form HIGH,LOW.
    sys.argv[1:] = ["--device-id", device, "--grpc-addr", address, "--election-id", f"0,{backup}"]
    shell.main()


if __name__ == "__main__":
    main()
