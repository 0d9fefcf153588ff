"""What a run says: table, root causes, JSON, HTML, next steps."""
