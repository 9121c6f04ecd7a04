def write(p): pass
