"""What makes the generated pages of the site: each function returns Markdown, and none writes a file."""
