"""Of the sending half: the queue of writes, and the packets in flight, acknowledged and lost."""
