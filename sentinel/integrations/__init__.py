"""One framework a file: its names and hook points turned into ours."""
