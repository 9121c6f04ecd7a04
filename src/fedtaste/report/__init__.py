"""HTML reports, tables and plots of finished runs and comparisons."""
