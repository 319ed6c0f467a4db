"""Run folders in a browser: what is there, what is running, what came out; start, stop, go on."""
