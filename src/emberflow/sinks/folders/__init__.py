"""What `sinks.Files` needs of a folder that is not one of this machine, and the names in all of them."""
