"""Files to statistics, figures, tables and one page; never loads JAX.

reading (content of the paths), evaluations (untrusted CSV and rows), series (a method on a task and
its final number), stats (intervals, aggregates), published (the paper's numbers), gains (misfit
against return gain), sections and writing (the report). Pages of all commands: page, plots, table.
"""
