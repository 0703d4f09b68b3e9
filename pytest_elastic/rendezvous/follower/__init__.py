"""The machine of every node: its connection to the leader, its workers, its part in the job."""
