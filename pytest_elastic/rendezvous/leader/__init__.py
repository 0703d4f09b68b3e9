"""The leader's machine: its members, their rounds, nodes that leave, and the end of the job."""
