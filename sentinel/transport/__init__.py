"""Communication between the processes of one node."""
