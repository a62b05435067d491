"""For tests of icefloe and of what is built on it: values to try things with. Needs the extra `test`."""
