"""Files: uploaded by clients or written by batches; contents in a folder, rows in the database."""
