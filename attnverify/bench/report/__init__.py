"""What is made of a benchmark's record: goals, scaling, tables, plots, one page."""
