"""
Repairs: which single change of somebody's own file makes it right. What no table of mistakes knows
is often one slip of the text, and the file itself has what is wanted in another place.
"""
