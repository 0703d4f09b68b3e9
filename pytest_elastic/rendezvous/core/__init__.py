"""The Raft-shaped core of the rendezvous: one replicated record, joint consensus, leases."""
