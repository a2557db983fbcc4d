"""Building blocks of APIs: requests with their tables and checks, answers, and refusals."""
