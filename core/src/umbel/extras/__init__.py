"""What stands on another package and can be read by itself, one file for each; the package is
imported when it is needed, and most of them not everybody has."""
