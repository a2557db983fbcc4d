"""What is stored for clients: files, batches, responses, and their expiry."""
