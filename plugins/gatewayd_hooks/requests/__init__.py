"""What APIs are made of: requests with their tables and checks, answers, and refusals."""
