"""Loading captures: sorted runs, staging, and the rule that decides which capture is kept."""
