"""Properties of saved gradients: norms and widths of super-groups, outliers, entropy, what workers share."""
