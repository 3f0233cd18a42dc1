"""Whether the CP factorization fits a dataset (App. Empirical CP Misfit Diagnostic).

`config` holds the options, `data` splits, scales and batches, `training` the two predictors, their
losses and their fit, `verdict` the intervals and their meaning, `report` the whole diagnosis
(`diagnose`) with its numbers and its page.
"""
