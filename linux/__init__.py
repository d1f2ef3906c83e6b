"""The ground floor: what the kernel offers, in the words of its manual pages; knows nothing of fabrics."""
