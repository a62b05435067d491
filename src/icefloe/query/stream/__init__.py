"""Stream the changes of a branch: positions in its history, and the rows, chunks and commits between two
positions.
"""
