"""Small models side by side, to see the paper's claims in minutes."""
