"""Front ends for inputs other than sequences of ids, one module each."""
