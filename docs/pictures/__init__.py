"""The pictures of the book: functions that draw with matplotlib what they are given."""
