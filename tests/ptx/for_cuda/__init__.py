"""A suite of tests as people with a GPU write them: nothing in it knows of the machine."""
