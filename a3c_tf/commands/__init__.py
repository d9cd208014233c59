"""What the command line can do: one file a command. Each returns the program's exit code."""
