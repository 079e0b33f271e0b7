"""Properties of saved gradients: norms and widths of super-groups, outliers, entropies, similarity of
workers."""
