"""Networks: link models, as data and arithmetic."""
