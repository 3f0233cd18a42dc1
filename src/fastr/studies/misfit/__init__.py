"""Whether the CP factorization fits a dataset (App. Empirical CP Misfit Diagnostic).

`config` holds the options, `data` splits and batches, `predictors` the two networks and their
losses, `training` their fit, `verdict` the intervals and their meaning, `report` the whole
diagnosis (`diagnose`) with its numbers, `page` its figures and page.
"""
