"""FedTAD: `method` is the algorithm, `reliability` what clients tell of their classes, `generator` the server's network."""
