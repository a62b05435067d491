"""Virtual chunks: locations, authorization by container and credentials, and reads of byte ranges."""
