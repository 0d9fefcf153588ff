"""The stand-alone script of a recorded failure: a page, or every call in a body of its own."""
