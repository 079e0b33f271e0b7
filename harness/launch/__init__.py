"""Starting the ranks of a run, watching them, and ending them."""
