"""Files: uploaded by clients or written by batches; contents in a folder, facts in the database."""
