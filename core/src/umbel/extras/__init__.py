"""What stands on a package that not everybody has, one file for each extra; the package itself
is imported when it is needed."""
