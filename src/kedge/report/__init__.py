"""Reports: the results of runs as tables, files and figures."""
