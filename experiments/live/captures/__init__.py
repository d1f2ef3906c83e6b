"""The evidence on the wire: taps, tcpdump, and the recorder that runs them with clocks and loads."""
