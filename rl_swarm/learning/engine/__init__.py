"""How a model runs fast."""
