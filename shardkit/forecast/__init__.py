"""What a conversion will need, told before it begins: arithmetic on counts and sizes, without I/O."""
