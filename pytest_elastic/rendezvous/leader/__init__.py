"""The machine of the node that leads: its members, their rounds, who leaves, how the job ends."""
