"""Side by side against torchrun: how long a job takes to form, and to be back after a fault."""
