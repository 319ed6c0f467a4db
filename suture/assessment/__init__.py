"""What federation would bring on a graph: look, choose candidates, try them in the time there is, say what follows."""
