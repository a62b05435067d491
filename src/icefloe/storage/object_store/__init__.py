"""S3, Google Cloud Storage and Azure through obstore, with conditional writes."""
