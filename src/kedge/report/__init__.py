"""Reports: what runs came to, as tables, files and figures."""
