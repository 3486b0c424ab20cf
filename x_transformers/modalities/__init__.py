"""Front ends for what is no sequence of ids, one module each."""
