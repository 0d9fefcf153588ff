"""Failures as records: kept, found, replayed, written as scripts, declared as known."""
