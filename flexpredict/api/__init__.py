"""What people call from Python; the command line calls the same."""
