def main() -> int:
    """Runs the command that `sys.argv` names, without the interpreter's lock, and returns its exit code."""
