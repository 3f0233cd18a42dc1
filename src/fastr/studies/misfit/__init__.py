"""Whether the CP factorization suits a dataset (App. Empirical CP Misfit Diagnostic)."""
