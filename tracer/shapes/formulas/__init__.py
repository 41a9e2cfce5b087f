"""Formulas of sizes: their normal form where they round, and sums and quotients with the values of the runs."""
