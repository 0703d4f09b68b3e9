"""What is inside one node: pid 1, its processes, namespaces, devices and clock."""
