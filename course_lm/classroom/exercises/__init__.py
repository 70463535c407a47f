"""The exercises: for each lesson a module of solutions and cases, and a TOML file of mistakes and hints."""
