"""Files to statistics, figures, tables and one page; never loads JAX.

reading (runs, results, misfits, all untrusted), series (a method on a task and its final number),
stats (intervals, aggregates, the paper's numbers, misfit gains), sections (the report). Pages of
all commands: page (with its figures) and table.
"""
