"""Looking without changing: for operators, checks and reports."""
