"""The machines of the rendezvous and their parts, with plain values."""
