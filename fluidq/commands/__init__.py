"""One module per verb of the command line: `HELP`, `EPILOG`, `add_arguments` and `run`."""
