"""Environment definitions and what is generated from them."""
