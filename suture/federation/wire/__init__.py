"""What travels between the parties of a federation."""
