"""What saved gradients look like: norms and widths of super-groups, outliers, entropy, what workers share."""
