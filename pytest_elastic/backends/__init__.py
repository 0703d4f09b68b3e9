"""Ways for nodes to meet other than a store at the endpoint, and our way offered to torchrun."""
