"""The manuscript: text, numbers, figures, and the one command that builds them (`python -m paper.build`)."""
