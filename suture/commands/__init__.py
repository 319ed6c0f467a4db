"""What the commands of the command line do; `suture.cli` declares their options and imports these only when needed."""
