"""One module per family of files; `fluidq.io.traces` and `fluidq.io.tables` choose among them by content."""
