"""`fedtaste audit`: attack the uploads of a configuration, and write a page about what they reveal."""
